// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/conformance"
	"github.com/kube-watchcache/watchcache/internal/mvcc"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/storage/capability"
)

var _ interface {
	storage.Interface
	capability.ProgressReporter
	capability.HistoryKeeper
	capability.KeyVersioner
} = (*Store)(nil)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func config() Config {
	return Config{
		GroupResource: poddata.Resource, ResourcePrefix: poddata.Prefix, KeyFunc: poddata.Key,
		GetAttrsFunc: poddata.Attrs, NewFunc: poddata.New,
	}
}

func open(t testing.TB, change ...func(*Config)) *Store {
	t.Helper()
	c := config()
	for _, change := range change {
		change(&c)
	}
	s, err := New(c)
	require.NoError(t, err)
	return s
}

// TestConformance: all clauses hold, and all suites of k8s.io/apiserver that need no hand
// in a storage's codec. RunWatchSemantics watches from resourceVersion 1, the empty store.
func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Backend {
		s := &compacted{Store: open(t)}
		mu, state := mvcc.Guarded(s.core)
		return conformance.Backend{
			Storage: s,
			Compact: func(_ context.Context, rv uint64) error {
				mu.Lock()
				defer mu.Unlock()
				state.Forget(rv)
				state.Wake()
				s.rv.Store(int64(rv))
				return nil
			},
			Touch: func(context.Context) (uint64, error) {
				mu.Lock()
				defer mu.Unlock()
				state.RV++
				state.Wake()
				return state.RV, nil
			},
		}
	})
}

// compacted is a Store whose history the suite shortens, which nothing else does.
type compacted struct {
	*Store
	rv atomic.Int64
}

func (s *compacted) CompactRevision() int64 { return s.rv.Load() }

// follow opens a watch from a version, "" for the state first.
func follow(t testing.TB, s storage.Interface, rv string) <-chan watch.Event {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w, err := s.Watch(ctx, poddata.Prefix, storage.ListOptions{ResourceVersion: rv, Recursive: true, Predicate: storage.Everything})
	require.NoError(t, err)
	t.Cleanup(func() {
		cancel()
		for range w.ResultChan() { //nolint:revive // the goroutine ends with the channel
		}
	})
	return w.ResultChan()
}

func version(t testing.TB, s *Store) string {
	t.Helper()
	rv, err := s.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	return strconv.FormatUint(rv, 10)
}

func line(e watch.Event) string {
	switch object := e.Object.(type) {
	case *example.Pod:
		return string(e.Type) + " " + object.Namespace + "/" + object.Name + " " + object.Labels["v"]
	case *metav1.Status:
		return string(e.Type) + " " + string(object.Reason)
	}
	return "closed"
}

func pod(name, v string) *example.Pod { return poddata.Pod(name, "v="+v) }

func list(t testing.TB, s storage.Interface, opts storage.ListOptions) map[string]*example.Pod {
	t.Helper()
	opts.Recursive, opts.Predicate = true, storage.Everything
	out := &example.PodList{}
	require.NoError(t, s.GetList(t.Context(), poddata.Prefix, opts, out))
	pods := map[string]*example.Pod{}
	for i := range out.Items {
		pods[out.Items[i].Namespace+"/"+out.Items[i].Name] = &out.Items[i]
	}
	return pods
}

// An object belongs to the caller again after Upsert, an equal one is no change, and one
// that is not there can't be removed.
func TestUpsertAndRemove(t *testing.T) {
	s := open(t)
	events := follow(t, s, version(t, s))
	object := pod("a/x", "1")
	object.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	require.NoError(t, s.Upsert(t.Context(), object))
	object.Labels["v"] = "written after Upsert"
	require.Equal(t, "ADDED a/x 1", line(<-events))
	require.Empty(t, object.ResourceVersion)

	before := version(t, s)
	require.NoError(t, s.Upsert(t.Context(), pod("a/x", "1")))
	require.Equal(t, before, version(t, s))
	require.True(t, apierrors.IsNotFound(s.Remove(t.Context(), "a", "y")))
}

// An error anywhere in a replacement leaves all as it was.
func TestReplace(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Replace(t.Context(), []runtime.Object{pod("a/same", "1")}))
	before := version(t, s)
	for want, objs := range map[string][]runtime.Object{
		`"/pods/a/twice" is there twice`: {pod("a/twice", "1"), pod("a/same", "3"), pod("a/twice", "2")},
		"object 1":                       {pod("a/same", "3"), nil},
	} {
		require.ErrorContains(t, s.Replace(t.Context(), objs), want)
	}
	require.Equal(t, before, version(t, s))
	require.NoError(t, s.Replace(t.Context(), nil))
	require.Empty(t, list(t, s, storage.ListOptions{}))
}

// A context that has ended changes nothing: what the program has collected until then may
// be a part of the state.
func TestEndedContext(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Upsert(t.Context(), pod("a/x", "1")))
	before := version(t, s)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Upsert(ended, pod("a/x", "2")), context.Canceled)
	require.ErrorIs(t, s.Remove(ended, "a", "x"), context.Canceled)
	for _, objs := range [][]runtime.Object{nil, {pod("a/x", "1")}, {pod("a/x", "2"), pod("a/y", "1")}} {
		require.ErrorIs(t, s.Replace(ended, objs), context.Canceled)
	}
	require.Equal(t, before, version(t, s))
	require.Len(t, list(t, s, storage.ListOptions{}), 1)
}

func TestBadObjects(t *testing.T) {
	failing := errors.New("no attributes")
	s := open(t, func(c *Config) {
		c.GetAttrsFunc = func(obj runtime.Object) (labels.Set, fields.Set, error) {
			if obj.(*example.Pod).Name == "unattributed" {
				return nil, nil, failing
			}
			return poddata.Attrs(obj)
		}
	})
	require.ErrorIs(t, s.Create(t.Context(), "/pods/a/unattributed", pod("a/unattributed", "1"), &example.Pod{}, 0), failing)
	versioned := pod("a/versioned", "1")
	versioned.ResourceVersion = "17"
	inNamespace := func(namespace string) *example.Pod {
		return &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "x"}}
	}
	for want, obj := range map[string]runtime.Object{
		"<nil>":                     nil,
		"*example.Pod <nil>":        (*example.Pod)(nil),
		"*example.PodList":          &example.PodList{},
		`namespace "a" has no name`: pod("a/", "1"),
		"a/..":                      pod("a/..", "1"),
		"a/b/c":                     pod("a/b/c", "1"),
		`of b/c/x: invalid namespace: [may not contain '/']`:   inNamespace("b/c"),
		`of b%2Fc/x: invalid namespace: [may not contain '%']`: inNamespace("b%2Fc"),
		`of ../x: invalid namespace: [may not be '..']`:        inNamespace(".."),
		`of /x: invalid key: "/pods//x"`:                       inNamespace(""),
		`a/versioned has the resourceVersion "17"`:             versioned,
		`"/pods/a/unattributed": no attributes`:                pod("a/unattributed", "1"),
	} {
		require.ErrorContains(t, s.Upsert(t.Context(), obj), want)
		require.ErrorContains(t, s.Replace(t.Context(), []runtime.Object{obj}), want)
	}
	require.ErrorContains(t, s.Remove(t.Context(), "a", ""), "no name")
	require.Empty(t, list(t, s, storage.ListOptions{}))
}

// TestValuesThatAreNotJSON: a value that no decoder of JSON makes would end the process
// in a deep copy, or fail every list of the object.
func TestValuesThatAreNotJSON(t *testing.T) {
	s := open(t, func(c *Config) {
		c.KeyFunc = func(obj runtime.Object) (string, error) {
			return poddata.Prefix + obj.(*unstructured.Unstructured).GetName(), nil
		}
		c.GetAttrsFunc = storage.DefaultNamespaceScopedAttr
		c.NewFunc = func() runtime.Object { return &unstructured.Unstructured{} }
	})
	object := func(name string, value any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"name": name}, "spec": map[string]any{"values": []any{"a", value}},
		}}
	}
	good := object("good", map[string]any{
		"a": nil, "b": true, "c": int64(1), "d": 1.5, "e": json.Number("1"), "f": map[string]any(nil), "g": []any(nil), "h": []any{"x"},
	})
	require.NoError(t, s.Upsert(t.Context(), good))
	before := version(t, s)
	for want, value := range map[string]any{
		".spec.values[1] is a int":                                   1,
		".spec.values[1] is a int32":                                 int32(1),
		".spec.values[1] is a uint64":                                uint64(1),
		".spec.values[1] is a []string":                              []string{"a"},
		".spec.values[1].x is a map[string]string":                   map[string]any{"x": map[string]string{}},
		".spec.values[1][2] is a *int":                               []any{"a", "b", new(int)},
		".spec.values[1] is a time.Time":                             time.Now(),
		".spec.values[1] is not JSON: json: unsupported value: NaN":  math.NaN(),
		".spec.values[1] is not JSON: json: unsupported value: +Inf": math.Inf(1),
		`.spec.values[1] is not JSON: json: `:                        json.Number("x"),
	} {

		bad := object("bad", value)
		for _, err := range []error{
			s.Upsert(t.Context(), bad),
			s.Replace(t.Context(), []runtime.Object{good, bad}),
			s.Create(t.Context(), poddata.Prefix+"bad", bad, nil, 0),
			s.Upsert(t.Context(), object("good", value)),
			s.GuaranteedUpdate(t.Context(), poddata.Prefix+"good", &unstructured.Unstructured{}, false, nil, func(runtime.Object, storage.ResponseMeta) (runtime.Object, *uint64, error) {
				return object("good", value), nil, nil
			}, nil),
		} {
			require.ErrorContains(t, err, want)
		}
	}
	require.Equal(t, before, version(t, s))
}

func TestBadConfig(t *testing.T) {
	_, err := New(Config{ResourcePrefix: "loads", History: -1})
	for _, field := range []string{"GroupResource", "ResourcePrefix", "KeyFunc", "GetAttrsFunc", "NewFunc", "History"} {
		require.ErrorContains(t, err, "memory.Config."+field+" is ")
	}
	c := config()
	c.NewFunc = func() runtime.Object { return &metav1.Status{} }
	_, err = New(c)
	require.ErrorContains(t, err, "NewFunc is a function that returns a *v1.Status")
	c.NewFunc = func() runtime.Object { return &unstructured.Unstructured{} }
	_, err = New(c)
	require.NoError(t, err)
	for _, prefix := range []string{"", "/", "//", "pods", "/a//b", "/a/../b", "/a/.", "/pods//"} {
		c = config()
		c.ResourcePrefix = prefix
		_, err = New(c)
		require.ErrorContains(t, err, "memory.Config.ResourcePrefix is ", "%q", prefix)
	}
	for _, key := range []string{poddata.Prefix, "/other/a/x"} {
		c = config()
		c.KeyFunc = func(runtime.Object) (string, error) { return key, nil }
		s, err := New(c)
		require.NoError(t, err)
		require.ErrorContains(t, s.Upsert(t.Context(), pod("a/x", "1")), "the key of a/x: invalid key: "+strconv.Quote(key))
	}
}

// Versions rise over restarts, and a client of an earlier process, or of a replica that
// was started later, gets a 410.
func TestRestart(t *testing.T) {
	started := time.Unix(1_800_000_000, 0)
	first, err := newAt(config(), started)
	require.NoError(t, err)
	require.NoError(t, first.Upsert(t.Context(), pod("a/x", "1")))
	second, err := newAt(config(), started.Add(time.Millisecond))
	require.NoError(t, err)
	require.Greater(t, version(t, second), version(t, first))
	require.Equal(t, "ERROR Expired", line(<-follow(t, second, version(t, first))))
	require.Equal(t, "ERROR Expired", line(<-follow(t, first, version(t, second))))

	reached, err := first.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	c := config()
	c.After = reached
	_, err = newAt(c, started.Add(-time.Hour))
	require.ErrorContains(t, err, "memory.Config.After is "+strconv.FormatUint(reached, 10))
	_, err = newAt(c, started.Add(time.Second))
	require.NoError(t, err)
}

// A watch that nobody reads keeps a bounded part of the history alive, and ends with 410.
func TestWatchThatFallsBehind(t *testing.T) {
	s := open(t)
	s.core = mvcc.New(mvcc.Config{Prefix: poddata.Prefix, NewFunc: poddata.New, Start: 1, History: 5, Behind: 5})
	events := follow(t, s, version(t, s))
	for i := range 10_000 {
		require.NoError(t, s.Upsert(t.Context(), pod("a/x", strconv.Itoa(i))))
	}
	last := ""
	for e := range events {
		last = line(e)
	}
	require.Equal(t, "ERROR Expired", last)
}

// A watch is not ended by replacements of the whole state, however large: nobody reads
// while they are made.
func TestWatchOfReplacements(t *testing.T) {
	s := open(t)
	s.core = mvcc.New(mvcc.Config{Prefix: poddata.Prefix, NewFunc: poddata.New, Start: 1, History: 5})
	events := follow(t, s, version(t, s))
	var objs []runtime.Object
	for i := range 1000 {
		objs = append(objs, pod("a/"+strconv.Itoa(i), "1"))
	}
	require.NoError(t, s.Replace(t.Context(), objs))
	require.NoError(t, s.Replace(t.Context(), nil))
	require.NoError(t, s.Upsert(t.Context(), pod("b/last", "1")))
	for n := 0; ; n++ {
		event := line(<-events)
		require.NotEqual(t, "ERROR Expired", event)
		if event == "ADDED b/last 1" {
			require.Equal(t, 2000, n)
			return
		}
	}
}

// Lists and watches bring the very object that the store keeps.
func TestObjectsAreShared(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Upsert(t.Context(), pod("a/x", "1")))
	_, state := mvcc.Guarded(s.core)
	stored := state.Get("/pods/a/x").Object
	require.Same(t, stored, (<-follow(t, s, "")).Object)
	require.NoError(t, s.Upsert(t.Context(), pod("a/x", "2")))
	require.Equal(t, "1", stored.(*example.Pod).Labels["v"])
}
