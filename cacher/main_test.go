// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/cachetest"
	"github.com/kube-watchcache/watchcache/internal/keptlists"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		// The shipped cacher, beside which some tests run ours, has one for 3 s for
		// each read that has waited.
		goleak.IgnoreTopFunction("k8s.io/apiserver/pkg/storage/cacher.(*watchCache).waitUntilFreshLocked.func2"),
		goleak.IgnoreTopFunction("k8s.io/apiserver/pkg/storage/cacher.(*freshnessWaiter).waitUntilFreshLocked.func2"))
}

// The fixtures of package cachetest, by the short names that tests know them by.
const patience = cachetest.Patience

var (
	newStore  = cachetest.NewStore
	put       = cachetest.Put
	podConfig = cachetest.Config
	newCache  = cachetest.Open
	start     = cachetest.Start
	until     = cachetest.Until
	line      = cachetest.Line
)

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// watchPods opens a watch over the key at rv.
func watchPods(t testing.TB, c *cacher.Cacher, key, rv string, change ...func(*storage.ListOptions)) *podWatch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	opts := storage.ListOptions{ResourceVersion: rv, Predicate: storage.Everything, Recursive: true}
	for _, change := range change {
		change(&opts)
	}
	w, err := c.Watch(keptlists.ShareInitialEvents(ctx), key, opts)
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	return &podWatch{Interface: w, t: t, cancel: cancel}
}

func selecting(label, field string) func(*storage.ListOptions) {
	return func(o *storage.ListOptions) { o.Predicate = poddata.Predicate(label, field) }
}

func withBookmarks(o *storage.ListOptions) { o.Predicate.AllowWatchBookmarks = true }

func streaming(o *storage.ListOptions) {
	yes := true
	o.SendInitialEvents = &yes
	o.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	o.Predicate.AllowWatchBookmarks = true
}

// podWatch reads a watch as short lines: "ADDED ns/name@5".
type podWatch struct {
	watch.Interface
	t      testing.TB
	cancel context.CancelFunc
}

func (w *podWatch) next() string {
	w.t.Helper()
	select {
	case event, ok := <-w.ResultChan():
		if !ok {
			return "closed"
		}
		return line(event)
	case <-time.After(patience):
		require.FailNow(w.t, "nothing comes")
		return ""
	}
}

func (w *podWatch) expect(want ...string) {
	w.t.Helper()
	for _, want := range want {
		require.Equal(w.t, want, w.next())
	}
}

// expectClosed skips what is still on its way and wants the end then.
func (w *podWatch) expectClosed() {
	w.t.Helper()
	for w.next() != "closed" {
	}
}

// list lists pods as "ns/name ns/name@rv of the list".
func list(t testing.TB, c storage.Interface, key, rv string, change ...func(*storage.ListOptions)) (string, *example.PodList) {
	t.Helper()
	pods := &example.PodList{}
	opts := storage.ListOptions{ResourceVersion: rv, Predicate: storage.Everything, Recursive: true}
	for _, change := range change {
		change(&opts)
	}
	require.NoError(t, c.GetList(testContext(t), key, opts, pods))
	return lineOf(pods), pods
}

func expectList(t testing.TB, c storage.Interface, key, rv, want string, change ...func(*storage.ListOptions)) *example.PodList {
	t.Helper()
	got, pods := list(t, c, key, rv, change...)
	assert.Equal(t, want, got, "list %s at %q", key, rv)
	return pods
}

func metaOf(t testing.TB, object runtime.Object) metav1.Object {
	t.Helper()
	accessor, err := meta.Accessor(object)
	require.NoError(t, err)
	return accessor
}

func everything(rv string) storage.ListOptions {
	return storage.ListOptions{ResourceVersion: rv, Predicate: storage.Everything, Recursive: true}
}

func noPods() *memstore.Store { return newStore() }
func onePod() *memstore.Store { return newStore(poddata.Pod("a/one")) }

// unchecked is a cache that is not compared with its storage.
func unchecked(c *cacher.Config) { c.ConsistencyCheckInterval = -1 }

// inBubble runs f with a cache in virtual time.
func inBubble(t *testing.T, store func() *memstore.Store, f func(*testing.T, *memstore.Store, *cacher.Cacher), change ...func(*cacher.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := store()
		c := start(t, s, change...)
		f(t, s, c)
		c.Stop()
	})
}

// elapse lets virtual time pass; it is called in a bubble only.
func elapse(d time.Duration) { <-time.After(d) }

// received takes what is on its way, after everything has come to rest.
func received(w watch.Interface) (lines []string) {
	synctest.Wait()
	for {
		select {
		case event, ok := <-w.ResultChan():
			if !ok {
				return append(lines, "closed")
			}
			lines = append(lines, line(event))
		default:
			return lines
		}
	}
}

func expectReceived(t *testing.T, w watch.Interface, want ...string) {
	t.Helper()
	assert.Equal(t, want, received(w))
}
