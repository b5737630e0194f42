// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/internal/cachetest"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

func withIndex(c *Config) {
	c.Indexers = cache.Indexers{"v": func(obj any) ([]string, error) {
		if v := obj.(*example.Pod).Labels["v"]; v != "bad" {
			return []string{v}, nil
		}
		return nil, errors.New("a bad value")
	}}
}

func objects(t testing.TB, s *Store, of Selection) (found []string) {
	t.Helper()
	objs, rv, err := s.Objects(of)
	require.NoError(t, err)
	require.Equal(t, version(t, s), rv)
	for _, obj := range objs {
		pod := obj.(*example.Pod)
		require.Same(t, obj, s.Object(pod.Namespace, pod.Name))
		found = append(found, pod.Namespace+"/"+pod.Name)
	}
	return found
}

// The program reads its objects without copies, also those that clients write.
func TestProgramReads(t *testing.T) {
	s := open(t, withIndex)
	require.NoError(t, s.Replace(t.Context(), []runtime.Object{pod("a/y", "2"), pod("b/x", "1"), pod("a/x", "1")}))
	require.Equal(t, []string{"a/x", "a/y", "b/x"}, objects(t, s, Selection{}))
	require.Equal(t, []string{"a/x", "b/x"}, objects(t, s, Selection{Labels: labels.SelectorFromSet(labels.Set{"v": "1"})}))
	require.Equal(t, []string{"a/x"}, objects(t, s, Selection{Index: "v", Value: "1", Fields: fields.OneTermEqualSelector("metadata.namespace", "a")}))
	require.Nil(t, s.Object("a", "z"))
	require.Nil(t, s.Object("a", ""))
	_, _, err := s.Objects(Selection{Index: "w"})
	require.ErrorContains(t, err, "w")
	_, _, err = open(t).Objects(Selection{Index: "v"})
	require.ErrorContains(t, err, `there is no index "v"`)

	_, rv, err := s.Objects(Selection{})
	require.NoError(t, err)
	events := follow(t, s, rv)
	c := cachetest.Start(t, s)
	require.NoError(t, c.GuaranteedUpdate(t.Context(), "/pods/a/x", &example.Pod{}, false, nil, storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
		obj.(*example.Pod).Labels["v"] = "2"
		return obj, nil
	}), nil))
	require.Equal(t, "MODIFIED a/x 2", line(<-events))
	require.Equal(t, []string{"a/x", "a/y"}, objects(t, s, Selection{Index: "v", Value: "2"}))
	require.NoError(t, s.Remove(t.Context(), "a", "x"))
	require.Equal(t, []string{"a/y"}, objects(t, s, Selection{Index: "v", Value: "2"}))
	require.ErrorContains(t, s.Upsert(t.Context(), pod("a/x", "bad")), `the index "v" of "/pods/a/x": a bad value`)
}

// What makes an object another one than its predecessor of the same name is made once.
func TestIdentity(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Upsert(t.Context(), pod("a/x", "1")))
	made := s.Object("a", "x").(*example.Pod)
	require.Len(t, made.UID, 36)
	require.False(t, made.CreationTimestamp.IsZero())
	require.Zero(t, made.CreationTimestamp.Nanosecond())
	before := version(t, s)
	require.NoError(t, s.Upsert(t.Context(), pod("a/x", "1")))
	require.NoError(t, s.Replace(t.Context(), []runtime.Object{pod("a/x", "1")}))
	require.Equal(t, before, version(t, s))
	for _, write := range []func(*example.Pod) error{
		func(p *example.Pod) error { return s.Upsert(t.Context(), p) },
		func(p *example.Pod) error { return s.Replace(t.Context(), []runtime.Object{p}) },
	} {
		changed := pod("a/x", version(t, s))
		require.NoError(t, write(changed))
		require.Empty(t, changed.UID)
		now := s.Object("a", "x").(*example.Pod)
		require.Equal(t, changed.Labels, now.Labels)
		require.Equal(t, []any{made.UID, made.CreationTimestamp}, []any{now.UID, now.CreationTimestamp})
	}
	require.NoError(t, s.Remove(t.Context(), "a", "x"))
	given := pod("a/x", "1")
	given.UID, given.CreationTimestamp = "mine", metav1.Now()
	require.NoError(t, s.Upsert(t.Context(), given))
	before = version(t, s)
	require.NoError(t, s.Upsert(t.Context(), given))
	require.Equal(t, before, version(t, s))
	now := s.Object("a", "x").(*example.Pod)
	require.Equal(t, "mine", string(now.UID))
	require.Equal(t, given.CreationTimestamp.Unix(), now.CreationTimestamp.Unix())
}

// A program that changes what it has read does not undo what a client has written since.
func TestCompareAndSwap(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Upsert(t.Context(), pod("a/x", "1")))
	mine := s.Object("a", "x").DeepCopyObject().(*example.Pod)
	read := mine.ResourceVersion
	mine.Labels["v"] = "2"
	require.NoError(t, s.Upsert(t.Context(), mine))
	for _, err := range []error{s.Upsert(t.Context(), mine), s.Replace(t.Context(), []runtime.Object{mine})} {
		require.True(t, apierrors.IsConflict(err), err)
		require.ErrorContains(t, err, `/pods/a/x has the resourceVersion "`+read+`", the current one is "`+version(t, s)+`"`)
	}
	require.NoError(t, s.Remove(t.Context(), "a", "x"))
	require.True(t, apierrors.IsConflict(s.Upsert(t.Context(), mine)))
}

// A lease ends with the next write, also of an equal object, or with the object.
func TestUpsertFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		put := func(ttl time.Duration) { require.NoError(t, s.UpsertFor(t.Context(), pod("a/x", "1"), ttl)) }
		there := func() bool { synctest.Wait(); return s.Object("a", "x") != nil }
		put(time.Minute)
		first := version(t, s)
		for range 5 {
			time.Sleep(50 * time.Second)
			require.True(t, there())
			put(time.Minute)
		}
		require.Equal(t, first, version(t, s), "a renewal is no change")
		time.Sleep(59 * time.Second)
		require.True(t, there())
		time.Sleep(2 * time.Second)
		require.False(t, there())
		put(time.Minute)
		put(0)
		time.Sleep(time.Hour)
		require.True(t, there())
		put(time.Minute)
		require.NoError(t, s.Replace(t.Context(), []runtime.Object{pod("a/x", "1")}))
		time.Sleep(time.Hour)
		require.True(t, there())
	})
}

// A cache over a Store has its state when it is made.
func TestReadyAtOnce(t *testing.T) {
	s := open(t)
	for i := range 1000 {
		require.NoError(t, s.Upsert(t.Context(), pod("a/"+strconv.Itoa(i), "1")))
	}
	c := cachetest.Open(t, s)
	require.True(t, c.Ready())
	require.Len(t, list(t, c, storage.ListOptions{ResourceVersion: "0"}), 1000)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w, err := c.Watch(ctx, poddata.Prefix, storage.ListOptions{ResourceVersion: version(t, s), Recursive: true, Predicate: storage.Everything})
	require.NoError(t, err)
	require.NoError(t, s.Remove(t.Context(), "a", "0"))
	require.Equal(t, watch.Deleted, (<-w.ResultChan()).Type)
}

// A client may update what it has created, with what it was sent: times have whole seconds.
func TestClientUpdatesWhatItCreated(t *testing.T) {
	s, strategy := open(t), poddata.Strategy{ObjectTyper: poddata.Scheme()}
	pods := &genericregistry.Store{
		NewFunc: poddata.New, NewListFunc: poddata.NewList, DefaultQualifiedResource: poddata.Resource, SingularQualifiedResource: poddata.Resource,
		CreateStrategy: strategy, UpdateStrategy: strategy, DeleteStrategy: strategy,
		TableConvertor: rest.NewDefaultTableConvertor(poddata.Resource),
	}
	options, err := s.StoreOptions(s.RESTOptions(poddata.Codec()), poddata.Scheme(), examplev1.SchemeGroupVersion.WithKind("Pod"))
	require.NoError(t, err)
	require.NoError(t, pods.CompleteWithOptions(options))
	defer pods.Destroy()
	ctx := request.WithNamespace(t.Context(), "a")
	created, err := pods.Create(ctx, pod("a/x", "1"), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	require.NoError(t, err)
	encoded, err := runtime.Encode(poddata.JSONCodec(), created)
	require.NoError(t, err)
	sent, err := runtime.Decode(poddata.JSONCodec(), encoded)
	require.NoError(t, err)
	sent.(*example.Pod).Labels["v"] = "2"
	_, _, err = pods.Update(ctx, "x", rest.DefaultUpdatedObjectInfo(sent), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, "2", s.Object("a", "x").(*example.Pod).Labels["v"])
}
