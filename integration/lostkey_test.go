// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// key is a transformer that encrypts with one key and can lose another one.
type key struct {
	writes, reads string
	lost          atomic.Bool // reads can't be read any more
}

func (k *key) TransformToStorage(_ context.Context, data []byte, _ value.Context) ([]byte, error) {
	return append([]byte(k.writes), data...), nil
}

func (k *key) TransformFromStorage(_ context.Context, data []byte, _ value.Context) ([]byte, bool, error) {
	if plain, ok := bytes.CutPrefix(data, []byte(k.reads)); ok && !k.lost.Load() {
		return plain, false, nil
	}
	if plain, ok := bytes.CutPrefix(data, []byte(k.writes)); ok && k.writes != k.reads {
		return plain, false, nil
	}
	return nil, false, errors.New("no key decrypts this")
}

// REGRESSIONS 144: a server has lost the key of objects that its cache has. A write
// must not succeed where storage's own would be refused, and events of deletions by
// other servers must reach the clients though their value can't be decrypted.
func TestLostKey(t *testing.T) {
	server := etcdserver.Start(t, etcdserver.Config{})
	for name, unsafe := range map[string]bool{"AllowUnsafeMalformedObjectDeletion off": false, "AllowUnsafeMalformedObjectDeletion on": true} {
		t.Run(name, func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.AllowUnsafeMalformedObjectDeletion, unsafe)
			testLostKey(t, server, unsafe)
		})
	}
}

func testLostKey(t *testing.T, server *etcdserver.Server, unsafe bool) {
	ctx := t.Context()
	backend, err := etcd3.Open(ctx, etcd3.Config{Endpoints: server.Endpoints(), Prefix: fmt.Sprintf("/lost-key-%t", unsafe)})
	require.NoError(t, err)
	defer func() { require.NoError(t, backend.Close()) }()
	open := func(transformer value.Transformer) storage.Interface {
		s, err := backend.Storage(etcd3.ResourceConfig{
			GroupResource: pods, ResourcePrefix: podPrefix, Codec: poddata.JSONCodec(),
			NewFunc: poddata.New, NewListFunc: poddata.NewList, Transformer: transformer,
		})
		require.NoError(t, err)
		return s
	}
	ours, other := &key{writes: "new:", reads: "old:"}, open(&key{writes: "old:", reads: "old:"})
	renewing := open(&key{writes: "new:", reads: "old:"})
	s := open(ours)
	for _, name := range []string{"deleted", "updated", "deleted-elsewhere", "updated-elsewhere", "malformed"} {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"of": name}}}
		require.NoError(t, other.Create(ctx, podPrefix+"ns/"+name, pod, &example.Pod{}, 0))
	}
	c, err := cacher.New(podConfig(s, poddata.JSONCodec()))
	require.NoError(t, err)
	defer stopInTime(t, c)
	require.NoError(t, c.Wait(ctx))
	list := &example.PodList{}
	require.NoError(t, c.GetList(ctx, podPrefix, storage.ListOptions{Predicate: storage.Everything, Recursive: true}, list))
	w, err := c.Watch(ctx, podPrefix, storage.ListOptions{ResourceVersion: list.ResourceVersion, Predicate: storage.Everything, Recursive: true})
	require.NoError(t, err)
	defer w.Stop()
	received := func(typ watch.EventType, name string) *example.Pod {
		t.Helper()
		select {
		case event := <-w.ResultChan():
			require.Equal(t, typ, event.Type, "%v", event.Object)
			object := event.Object
			if shared, ok := object.(runtime.CacheableObject); ok {
				object = shared.GetObject()
			}
			pod := object.(*example.Pod)
			require.Equal(t, name, pod.Name)
			require.Equal(t, name, pod.Labels["of"])
			return pod
		case <-time.After(patience):
			require.FailNow(t, "no event")
			return nil
		}
	}
	change := storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
		pod := obj.(*example.Pod)
		pod.Annotations = map[string]string{"changed": "yes"}
		return pod, nil
	})
	remove := func(s storage.Interface, name string, opts storage.DeleteOptions) error {
		return s.Delete(ctx, podPrefix+"ns/"+name, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, opts)
	}

	ours.lost.Store(true)

	require.ErrorContains(t, remove(s, "deleted", storage.DeleteOptions{}), "no key decrypts this", "storage's own answer")
	require.ErrorContains(t, remove(c, "deleted", storage.DeleteOptions{}), "no key decrypts this")
	require.ErrorContains(t, c.GuaranteedUpdate(ctx, podPrefix+"ns/updated", &example.Pod{}, false, nil, change, nil), "no key decrypts this")

	require.NoError(t, remove(other, "deleted-elsewhere", storage.DeleteOptions{}))
	gone := received(watch.Deleted, "deleted-elsewhere")
	require.Greater(t, gone.ResourceVersion, list.ResourceVersion, "a DELETED event has the version of the deletion")
	require.NoError(t, renewing.GuaranteedUpdate(ctx, podPrefix+"ns/updated-elsewhere", &example.Pod{}, false, nil, change, nil))
	received(watch.Modified, "updated-elsewhere")
	require.NoError(t, c.GuaranteedUpdate(ctx, podPrefix+"ns/updated-elsewhere", &example.Pod{}, false, nil, storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
		obj.(*example.Pod).Annotations = nil
		return obj, nil
	}), nil), "an object that can be read")
	received(watch.Modified, "updated-elsewhere")
	if unsafe {
		require.NoError(t, remove(c, "malformed", storage.DeleteOptions{ExpectTransformOrDecodeError: true}))
	} else {
		require.NoError(t, remove(other, "malformed", storage.DeleteOptions{}))
	}
	received(watch.Deleted, "malformed")
	require.Nil(t, c.Status().Paused)
	require.NoError(t, c.GetList(ctx, podPrefix, storage.ListOptions{Predicate: storage.Everything, Recursive: true}, list))
	require.Len(t, list.Items, 3)
	require.Empty(t, c.Status().LastError)

	// A client of storage itself still gets an error.
	direct, err := s.Watch(ctx, podPrefix, storage.ListOptions{ResourceVersion: list.Items[0].ResourceVersion, Predicate: storage.Everything, Recursive: true})
	require.NoError(t, err)
	defer direct.Stop()
	for event := range direct.ResultChan() {
		if event.Type == watch.Error {
			break
		}
	}
}
