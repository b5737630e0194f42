// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/metrics"
)

// checked is a cache in a bubble whose consistency with its store is checked.
type checked struct {
	*Cacher
	t      *testing.T
	store  *memstore.Store
	counts func() string
}

func newChecked(t *testing.T, store *memstore.Store, of storage.Interface, interval time.Duration) *checked {
	t.Helper()
	registry := prometheus.NewRegistry()
	m, err := metrics.New(registry)
	require.NoError(t, err)
	c, err := New(Config{
		Storage: of, Versioner: storage.APIObjectVersioner{}, GroupResource: poddata.Resource, ResourcePrefix: poddata.Prefix,
		KeyFunc: poddata.Key, GetAttrsFunc: poddata.Attrs, NewFunc: poddata.New, NewListFunc: poddata.NewList, Codec: poddata.Codec(),
		Metrics: m, ConsistencyCheckInterval: interval,
	})
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	require.NoError(t, c.Wait(t.Context()))
	return &checked{c, t, store, func() string {
		families, err := registry.Gather()
		require.NoError(t, err)
		var counts []string
		for _, family := range families {
			if family.GetName() != "watchcache_consistency_checks_total" {
				continue
			}
			for _, m := range family.GetMetric() {
				if n := m.GetCounter().GetValue(); n > 0 {
					for _, label := range m.GetLabel() {
						if label.GetName() == "result" {
							counts = append(counts, fmt.Sprintf("%s:%v", label.GetValue(), n))
						}
					}
				}
			}
		}
		return strings.Join(counts, " ")
	}}
}

func (c *checked) put(pod *example.Pod) {
	key, err := poddata.Key(pod)
	require.NoError(c.t, err)
	c.store.Put(key, pod)
}

// miss does a write that the cache's watch does not bring.
func (c *checked) miss(write func()) {
	release := c.store.Hold()
	write()
	c.store.SkipEvents()
	release()
	c.fresh()
}

// fresh brings the cache to the store's version.
func (c *checked) fresh() {
	c.t.Helper()
	opts := storage.ListOptions{Predicate: storage.Everything, Recursive: true}
	opts.Predicate.Limit = 1
	require.NoError(c.t, c.GetList(c.t.Context(), poddata.Prefix, opts, &example.PodList{}))
}

// exact lists the cache's version exactly, and tells whether storage was asked.
func (c *checked) exact() (names string, delegated bool) {
	c.t.Helper()
	before := c.store.Requests()["list"]
	opts := storage.ListOptions{
		ResourceVersion: fmt.Sprint(c.Status().ResourceVersion), ResourceVersionMatch: metav1.ResourceVersionMatchExact,
		Predicate: storage.Everything, Recursive: true,
	}
	pods := &example.PodList{}
	require.NoError(c.t, c.GetList(c.t.Context(), poddata.Prefix, opts, pods))
	var all []string
	for _, pod := range pods.Items {
		all = append(all, pod.Name)
	}
	return strings.Join(all, " "), c.store.Requests()["list"] > before
}

// expectConsistent reads as of now, and wants to know whether storage was asked.
func (c *checked) expectConsistent(want string, delegated bool) {
	c.t.Helper()
	before := c.store.Requests()
	pods := &example.PodList{}
	require.NoError(c.t, c.GetList(c.t.Context(), poddata.Prefix, storage.ListOptions{Predicate: storage.Everything, Recursive: true}, pods))
	var all []string
	for _, pod := range pods.Items {
		all = append(all, pod.Name)
		assert.NoError(c.t, c.Get(c.t.Context(), poddata.Prefix+pod.Namespace+"/"+pod.Name, storage.GetOptions{}, &example.Pod{}))
	}
	after := c.store.Requests()
	lists, gets := after["list"]-before["list"], after["get"]-before["get"]
	assert.Equal(c.t, want, strings.Join(all, " "), "from storage %d lists and %d GETs", lists, gets)
	assert.Equal(c.t, delegated, lists == 1, "whether storage was listed: %d lists, %d GETs", lists, gets)
	assert.Equal(c.t, delegated, gets == len(all), "whether all GETs went to storage: %d lists, %d GETs", lists, gets)
	assert.NotEqual(c.t, delegated, lists+gets == 0, "whether storage was asked: %d lists, %d GETs", lists, gets)
}

func expectExact(c *checked, want string, delegated bool) {
	c.t.Helper()
	names, from := c.exact()
	assert.Equal(c.t, want, names)
	assert.Equal(c.t, delegated, from, "whether storage was asked")
}

func newPods(names ...string) *memstore.Store {
	store := memstore.New(poddata.Prefix, poddata.New)
	for _, name := range names {
		store.Put(poddata.Prefix+name, poddata.Pod(name))
	}
	return store
}

// Regressions 20 and 51: changes that the cache has missed without noticing are
// found by comparing it with storage. The cache is then listed again at once,
// and until that is done storage answers what must be right.
func TestConsistencyIsChecked(t *testing.T) {
	for _, interval := range []time.Duration{time.Minute, 0, -1} {
		t.Run(interval.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newPods("a/one")
				c := newChecked(t, store, store, interval)
				pause := c.config.ConsistencyCheckInterval * 3 / 2
				if interval < 0 {
					<-time.After(time.Hour)
					assert.Empty(t, c.counts(), "checks were made")
					c.Stop()
					return
				}
				<-time.After(pause)
				synctest.Wait()
				counts := c.counts()
				assert.Equal(t, "passed:1", counts, "after %v", pause)
				expectExact(c, "one", false)
				c.miss(func() { c.put(poddata.Pod("a/two")) })
				expectExact(c, "one", false) // nobody knows yet
				open := store.Gate("watch")
				<-time.After(pause)
				synctest.Wait()
				expectExact(c, "one two", true)
				c.expectConsistent("one two", true)
				last := c.Status().LastError
				require.NotNil(t, last, "the status tells no error")
				assert.Contains(t, last.Message, "differs")
				open()
				<-time.After(time.Second)
				synctest.Wait()
				expectExact(c, "one two", false)
				c.expectConsistent("one two", false)
				<-time.After(pause)
				synctest.Wait()
				expectExact(c, "one two", false)
				counts = c.counts()
				assert.Contains(t, []string{"failed:1 passed:2", "failed:1 passed:3"}, counts)
				c.Stop()
			})
		})
	}
}

func TestConsistencyCheckFindsDifferences(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*checked)
		says   string // "": they agree
	}{
		{"nothing", func(*checked) {}, ""},
		{"changes that came", func(c *checked) { c.put(poddata.Pod("b/one")); c.store.Remove("/pods/a/one"); c.fresh() }, ""},
		{"an addition before", func(c *checked) { c.miss(func() { c.put(poddata.Pod("a/and")) }) }, `"/pods/a/and" at 4 where the cache has "/pods/a/one" at 2`},
		{"an addition beyond", func(c *checked) { c.miss(func() { c.put(poddata.Pod("b/one")) }) }, `"/pods/b/one" at 4 beyond`},
		{"a change", func(c *checked) { c.miss(func() { c.put(poddata.Pod("a/one")) }) }, `"/pods/a/one" at 4 where the cache has "/pods/a/one" at 2`},
		{"a deletion", func(c *checked) { c.miss(func() { c.store.Remove("/pods/a/one") }) }, `"/pods/a/two" at 3 where the cache has "/pods/a/one" at 2`},
		{"the last deletion", func(c *checked) { c.miss(func() { c.store.Remove("/pods/a/two") }) }, `nothing where the cache has "/pods/a/two" at 3`},
	} {
		for _, keysOnly := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, keys only %v", tc.name, keysOnly), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := newPods("a/one", "a/two")
					var of storage.Interface = store
					if keysOnly {
						of = keysOf{store}
					}
					c := newChecked(t, store, of, time.Minute)
					synctest.Wait() // its own checks are a minute away
					tc.change(c)
					before := store.Requests()["list"]
					var log bytes.Buffer
					defer klog.CaptureState().Restore()
					klog.LogToStderr(false)
					klog.SetOutput(&log)
					c.lifecycle.current().checkConsistency(t.Context())
					klog.Flush()
					assert.NotEqual(t, keysOnly, store.Requests()["list"] > before, "whether objects were listed")
					want := "passed:1"
					if tc.says != "" {
						want = "failed:1"
					}
					assert.Equal(t, want, c.counts())
					last := c.Status().LastError
					assert.Equal(t, tc.says != "", last != nil, "whether the status tells an error: %+v", last)
					if last != nil {
						assert.Contains(t, last.Message, "differs")
						assert.NotContains(t, last.Message, "/pods/a/", "the status names an object")
						assert.Contains(t, strings.ReplaceAll(log.String(), `\"`, `"`), tc.says)
					}
					_, delegated := c.exact()
					assert.Equal(t, tc.says != "", delegated, "an exact LIST went to storage")
					c.Stop()
				})
			})
		}
	}
}

// keysOf can tell keys and versions without objects.
type keysOf struct{ *memstore.Store }

func (s keysOf) Versions(ctx context.Context, prefix string, rv uint64, visit func(string, uint64) error) error {
	return s.KeysAt(ctx, prefix, rv, visit)
}

// A check that can't be made changes nothing; and a version that storage has
// compacted meanwhile is no error.
func TestConsistencyCheckCannotBeMade(t *testing.T) {
	synctest.Test(t, consistencyCheckCannotBeMade)
}

func consistencyCheckCannotBeMade(t *testing.T) {
	store := newPods("a/one")
	c := newChecked(t, store, store, time.Minute)
	store.Fail("list", errors.New("etcdserver: no leader"))
	c.lifecycle.current().checkConsistency(t.Context())
	last := c.Status().LastError
	require.NotNil(t, last, "the status tells no error")
	assert.Contains(t, last.Message, "no leader")
	assert.Equal(t, "error:1", c.counts())
	store.Fail("list", nil)
	expectExact(c, "one", false)

	before := *c.Status().LastError
	store.Hold()
	store.Compact(store.Touch())
	c.lifecycle.current().checkConsistency(t.Context())
	last = c.Status().LastError
	assert.Equal(t, before, *last)
	assert.Equal(t, "error:2", c.counts())
	c.lifecycle.current().readiness.set(false)
	c.lifecycle.current().checkConsistency(t.Context())
	assert.Equal(t, "error:2", c.counts(), "a cache that is not ready was checked")
	c.Stop()
}
