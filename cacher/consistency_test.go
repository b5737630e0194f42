// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

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
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{
		Storage: of, Versioner: storage.APIObjectVersioner{}, GroupResource: poddata.Resource, ResourcePrefix: poddata.Prefix,
		KeyFunc: poddata.Key, GetAttrsFunc: poddata.Attrs, NewFunc: poddata.New, NewListFunc: poddata.NewList, Codec: poddata.Codec(),
		Metrics: m, ConsistencyCheckInterval: interval,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	if err := c.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &checked{c, t, store, func() string {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
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
	if err != nil {
		c.t.Fatal(err)
	}
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
	if err := c.Get(c.t.Context(), "/pods/any", storage.GetOptions{IgnoreNotFound: true}, &example.Pod{}); err != nil {
		c.t.Fatal(err)
	}
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
	if err := c.GetList(c.t.Context(), poddata.Prefix, opts, pods); err != nil {
		c.t.Fatal(err)
	}
	var all []string
	for _, pod := range pods.Items {
		all = append(all, pod.Name)
	}
	return strings.Join(all, " "), c.store.Requests()["list"] > before
}

func expectExact(c *checked, want string, delegated bool) {
	c.t.Helper()
	if names, from := c.exact(); names != want || from != delegated {
		c.t.Errorf("got %q, from storage %v; want %q, %v", names, from, want, delegated)
	}
}

func newPods(names ...string) *memstore.Store {
	store := memstore.New(poddata.Prefix, poddata.New)
	for _, name := range names {
		store.Put(poddata.Prefix+name, poddata.Pod(name))
	}
	return store
}

// Regression 20: changes that the cache has missed without noticing are found
// by comparing it with storage. From then on exact versions are storage's to
// answer, until the two agree again.
func TestConsistencyIsChecked(t *testing.T) {
	for _, interval := range []time.Duration{time.Minute, 0, -1} {
		t.Run(interval.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newPods("a/one")
				c := newChecked(t, store, store, interval)
				pause := c.config.ConsistencyCheckInterval * 3 / 2
				if interval < 0 {
					<-time.After(time.Hour)
					if counts := c.counts(); counts != "" {
						t.Errorf("checks were made: %s", counts)
					}
					c.Stop()
					return
				}
				<-time.After(pause)
				synctest.Wait()
				if counts := c.counts(); counts != "passed:1" {
					t.Errorf("got %q after %v, want one check", counts, pause)
				}
				expectExact(c, "one", false)
				c.miss(func() { c.put(poddata.Pod("a/two")) })
				expectExact(c, "one", false) // nobody knows yet
				<-time.After(pause)
				synctest.Wait()
				expectExact(c, "one two", true)
				if last := c.Status().LastError; last == nil || !strings.Contains(last.Message, `"/pods/a/two" at 3`) {
					t.Errorf("the status says %+v", last)
				}
				// The next change of the object shows that one was missed.
				c.put(poddata.Pod("a/two"))
				<-time.After(time.Second)
				c.fresh()
				expectExact(c, "one two", true)
				<-time.After(pause)
				synctest.Wait()
				expectExact(c, "one two", false)
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
				store := newPods("a/one", "a/two")
				var of storage.Interface = store
				if keysOnly {
					of = keysOf{store}
				}
				c := newChecked(t, store, of, time.Minute)
				tc.change(c)
				before := store.Requests()["list"]
				c.sleep.engine.Load().checkConsistency(t.Context())
				if listed := store.Requests()["list"] > before; listed == keysOnly {
					t.Errorf("objects were listed: %v", listed)
				}
				want := "passed:1"
				if tc.says != "" {
					want = "failed:1"
				}
				if counts := c.counts(); counts != want {
					t.Errorf("got %q, want %q", counts, want)
				}
				if last := c.Status().LastError; (last != nil) != (tc.says != "") || last != nil && !strings.Contains(last.Message, tc.says) {
					t.Errorf("the status says %+v, want %q", last, tc.says)
				}
				_, delegated := c.exact()
				if delegated != (tc.says != "") {
					t.Errorf("an exact LIST went to storage: %v", delegated)
				}
			})
		}
	}
}

// keysOf can tell keys and versions without objects.
type keysOf struct{ *memstore.Store }

func (s keysOf) Versions(_ context.Context, prefix string, rv uint64, visit func(string, uint64) error) error {
	for _, v := range s.KeysAt(prefix, rv) {
		if err := visit(v.Key, v.RV); err != nil {
			return err
		}
	}
	return nil
}

// A check that can't be made changes nothing; and a version that storage has
// compacted meanwhile is no error.
func TestConsistencyCheckCannotBeMade(t *testing.T) {
	store := newPods("a/one")
	c := newChecked(t, store, store, time.Minute)
	store.Fail("list", errors.New("no leader"))
	c.sleep.engine.Load().checkConsistency(t.Context())
	if last := c.Status().LastError; last == nil || !strings.Contains(last.Message, "no leader") || c.counts() != "error:1" {
		t.Errorf("got %+v, %s", last, c.counts())
	}
	store.Fail("list", nil)
	expectExact(c, "one", false)

	c.lastError.Store(nil)
	store.Hold()
	store.Compact(store.Touch())
	c.sleep.engine.Load().checkConsistency(t.Context())
	if last := c.Status().LastError; last != nil || c.counts() != "error:2" {
		t.Errorf("got %+v, %s", last, c.counts())
	}
	c.sleep.engine.Load().readiness.set(false)
	c.sleep.engine.Load().checkConsistency(t.Context())
	if counts := c.counts(); counts != "error:2" {
		t.Errorf("a cache that is not ready was checked: %s", counts)
	}
}
