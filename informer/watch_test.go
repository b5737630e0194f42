// SPDX-License-Identifier: Apache-2.0

package informer_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/informer"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

var (
	streaming = metav1.ListOptions{
		SendInitialEvents: new(true), AllowWatchBookmarks: true,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	}
	changesOnly = metav1.ListOptions{
		SendInitialEvents: new(false), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	}
)

// at is the options at a resourceVersion.
func at(o metav1.ListOptions, rv string) metav1.ListOptions {
	o.ResourceVersion = rv
	return o
}

// A watch begins where the API concepts say, with an API server's defaults.
func TestWatchBegins(t *testing.T) {
	for name, test := range map[string]struct {
		options metav1.ListOptions
		want    []string
	}{
		"at the most recent version": {metav1.ListOptions{}, []string{"ADDED a/one@2", "ADDED b/two@3"}},
		"at any version":             {metav1.ListOptions{ResourceVersion: "0"}, []string{"ADDED a/one@2", "ADDED b/two@3"}},
		"after a version":            {metav1.ListOptions{ResourceVersion: "2"}, []string{"ADDED b/two@3"}},
		"with bookmarks":             {metav1.ListOptions{AllowWatchBookmarks: true}, []string{"ADDED a/one@2", "ADDED b/two@3", "BOOKMARK@3 end of initial events"}},
		"with the state":             {streaming, []string{"ADDED a/one@2", "ADDED b/two@3", "BOOKMARK@3 end of initial events"}},
		"with the state of any time": {at(streaming, "0"), []string{"ADDED a/one@2", "ADDED b/two@3", "BOOKMARK@3 end of initial events"}},
		"with a state not older":     {at(streaming, "2"), []string{"ADDED a/one@2", "ADDED b/two@3", "BOOKMARK@3 end of initial events"}},
		"without the state":          {changesOnly, nil},
		"without any state":          {at(changesOnly, "0"), nil},
		"without state after one":    {at(changesOnly, "2"), []string{"ADDED b/two@3"}},
		"in an old version":          {metav1.ListOptions{ResourceVersion: "1"}, []string{"ERROR 410 Expired", "closed"}},
		"in another history":         {metav1.ListOptions{ResourceVersion: "1000"}, []string{"ERROR 410 Expired", "closed"}},
		"with a state to come":       {at(streaming, "1000"), []string{"ERROR 504 Timeout", "closed"}},
		"and a limit does not count": {metav1.ListOptions{Limit: 1}, []string{"ADDED a/one@2", "ADDED b/two@3"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newStore(poddata.Pod("a/one"))
				c := start(t, store)
				put(store, poddata.Pod("b/two"))
				synctest.Wait()
				w := startWatch(t, informer.ListerWatcher(c), test.options)
				elapse(10 * time.Second)
				w.expectRest(test.want...)
				w.Stop()
				c.Stop()
			})
		})
	}
}

// A watcher gets the events of selected objects: an object that leaves the
// selection is deleted, in its last selected state and at the version of the
// change.
func TestWatchSelects(t *testing.T) {
	for name, test := range map[string]struct {
		options metav1.ListOptions
		narrow  []informer.Option
		want    []string
	}{
		"a label":     {metav1.ListOptions{LabelSelector: "app=web"}, nil, []string{"ADDED ns1/x@3", "DELETED ns1/x@4", "ADDED ns11/y@6", "DELETED ns11/y@7"}},
		"a field":     {metav1.ListOptions{FieldSelector: "spec.nodeName=n1"}, nil, []string{"ADDED ns1/x@5"}},
		"a namespace": {metav1.ListOptions{}, []informer.Option{informer.InNamespace("ns1")}, []string{"ADDED ns1/x@2", "MODIFIED ns1/x@3", "MODIFIED ns1/x@4", "MODIFIED ns1/x@5"}},
		"a namespace by its field": {metav1.ListOptions{FieldSelector: "metadata.namespace=ns11"}, nil,
			[]string{"ADDED ns11/y@6", "DELETED ns11/y@7"}},
		"a name in a namespace": {metav1.ListOptions{FieldSelector: "metadata.name=y"}, []informer.Option{informer.InNamespace("ns11")},
			[]string{"ADDED ns11/y@6", "DELETED ns11/y@7"}},
		"a name in all of them": {metav1.ListOptions{FieldSelector: "metadata.name=y"}, nil, []string{"ADDED ns11/y@6", "DELETED ns11/y@7"}},
		"a name elsewhere":      {metav1.ListOptions{FieldSelector: "metadata.name=y"}, []informer.Option{informer.InNamespace("ns1")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				w := startWatch(t, informer.ListerWatcher(c, test.narrow...), at(test.options, "1"))
				put(store, poddata.Pod("ns1/x"))
				put(store, poddata.Pod("ns1/x", "app=web"))
				put(store, poddata.Pod("ns1/x", "app=db"))
				put(store, poddata.Pod("ns1/x", "spec.nodeName=n1"))
				put(store, poddata.Pod("ns11/y", "app=web"))
				store.Remove("/pods/ns11/y")
				w.expectRest(test.want...)
				w.Stop()
			})
		})
	}
}

// A watch reads the narrowest key or key prefix of the cache.
func TestWatchesAreNarrow(t *testing.T) {
	c := start(t, newStore())
	for _, test := range []struct {
		field     string
		namespace string
		want      string
	}{
		{"", "", "/pods/"},
		{"", "ns1", "/pods/ns1/"},
		{"metadata.namespace=ns1", "", "/pods/ns1/"},
		{"metadata.namespace=ns2", "ns1", "/pods/ns1/"},
		{"metadata.name=a", "", "/pods/"},
		{"metadata.name=a", "ns1", "/pods/ns1/a"},
		{"metadata.name=a,metadata.namespace=ns1", "", "/pods/ns1/a"},
		{"metadata.name!=a,metadata.namespace!=ns1", "", "/pods/"},
	} {
		w := startWatch(t, informer.ListerWatcher(c, informer.InNamespace(test.namespace)), metav1.ListOptions{FieldSelector: test.field})
		got := c.Status().Watchers
		require.Len(t, got, 1, "%q in namespace %q", test.field, test.namespace)
		assert.Equal(t, test.want, got[0].Key, "%q in namespace %q", test.field, test.namespace)
		w.Stop()
		until(t, "the watch ends", func() bool { return len(c.Status().Watchers) == 0 })
	}
}

// Every way to end a watch closes it and ends its goroutine, whether or not its
// events are taken.
func TestWatchEnds(t *testing.T) {
	for name, end := range map[string]func(w *watching, cancel context.CancelFunc, c *cacher.Cacher){
		"with Stop":             func(w *watching, _ context.CancelFunc, _ *cacher.Cacher) { w.Stop(); w.Stop() },
		"with its context":      func(_ *watching, cancel context.CancelFunc, _ *cacher.Cacher) { cancel() },
		"with the cache":        func(_ *watching, _ context.CancelFunc, c *cacher.Cacher) { c.Stop() },
		"with its time":         func(*watching, context.CancelFunc, *cacher.Cacher) { elapse(100 * time.Second) },
		"with all that at once": func(w *watching, cancel context.CancelFunc, c *cacher.Cacher) { go cancel(); go w.Stop(); c.Stop() },
	} {
		for _, pending := range []int{0, 1, 1000} {
			t.Run(fmt.Sprintf("%s with %d events pending", name, pending), func(t *testing.T) {
				inBubble(t, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					w, err := informer.ListerWatcher(c).WatchWithContext(ctx, metav1.ListOptions{ResourceVersion: "1", TimeoutSeconds: new(int64(100))})
					require.NoError(t, err)
					for i := range pending {
						put(store, poddata.Pod(fmt.Sprintf("a/%d", i)))
					}
					synctest.Wait()
					end(&watching{w, t}, cancel, c)
					elapse(2 * time.Second)
					assert.Empty(t, c.Status().Watchers, "the watchers of the cache")
					for _, stack := range goroutines() {
						assert.NotContains(t, stack, "privateWatch", "the watch's goroutine has not ended")
					}
					n := 0
					for range w.ResultChan() { // or else the bubble reports a deadlock
						n++
					}
					assert.LessOrEqual(t, n, pending, "more events than were sent")
				}, func(config *cacher.Config) { config.EventsHistoryWindow = time.Hour })
			})
		}
	}
}

// goroutines returns the stack of each goroutine of the bubble, without those
// that earlier tests have left to end by themselves.
func goroutines() (all []string) {
	buffer := make([]byte, 1<<20)
	for stack := range strings.SplitSeq(string(buffer[:runtime.Stack(buffer, true)]), "\n\n") {
		if state, _, _ := strings.Cut(stack, "\n"); strings.Contains(state, "synctest bubble") {
			all = append(all, stack)
		}
	}
	return all
}

func TestWithoutAContext(t *testing.T) {
	store := newStore()
	l := informer.ListerWatcher(start(t, store))
	put(store, poddata.Pod("a/one"))
	object, err := l.List(metav1.ListOptions{})
	require.NoError(t, err)
	assert.Equal(t, "a/one@2", listed(t, object))
	assert.IsType(t, &example.PodList{}, object)
	w, err := l.Watch(metav1.ListOptions{ResourceVersion: "1"})
	require.NoError(t, err)
	defer w.Stop()
	(&watching{w, t}).expect("ADDED a/one@2")
}
