// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// storedHistory is a storage that says that it keeps its history, and has some: up to
// resourceVersion 8.
func storedHistory() *memstore.Store {
	store := newStore(poddata.Pod("a/one"), poddata.Pod("a/two")) // 2, 3
	store.History = true
	put(store, poddata.Pod("a/one", "color=red"))   // 4
	put(store, poddata.Pod("b/three"))              // 5
	store.Remove("/pods/a/two")                     // 6
	put(store, poddata.Pod("b/three", "color=red")) // 7
	put(store, poddata.Pod("a/two"))                // 8
	return store
}

// expectRefused wants a watch to be told 410.
func expectRefused(t *testing.T, c *cacher.Cacher, rv string) {
	t.Helper()
	expectReceived(t, watchPods(t, c, "/pods/", rv), "ERROR 410 Expired", "closed")
}

// receivedAll takes all that comes, which may be more than a watch has room for.
func receivedAll(w *podWatch) (all []string) {
	for {
		lines := received(w)
		if all = append(all, lines...); len(lines) == 0 || lines[len(lines)-1] == "closed" {
			return all
		}
	}
}

// quietlyCompacted does not tell what it has compacted, as a storage that somebody
// else compacts.
type quietlyCompacted struct{ *memstore.Store }

func (quietlyCompacted) CompactRevision() int64 { return 0 }

// The cache then finds out by itself how far it can go back.
func TestBackfillAfterQuietCompaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storedHistory()
		for range 1000 {
			store.Touch()
		}
		for i := range 20 {
			put(store, poddata.Pod("b/last", fmt.Sprintf("size=%d", i))) // up to 1028
		}
		store.Compact(900)
		c := newCache(t, quietlyCompacted{store})
		synctest.Wait()
		expectRefused(t, c, "899")
		assert.LessOrEqual(t, store.Requests()["list"], 16, "reads of storage that find out")
		for _, rv := range []string{"900", "1000"} {
			assert.Len(t, receivedAll(watchPods(t, c, "/pods/", rv)), 20)
		}
		lines := receivedAll(watchPods(t, c, "/pods/", "1010"))
		require.Len(t, lines, 18)
		assert.Equal(t, "MODIFIED b/last@1011", lines[0])
	})
}

// REGRESSIONS 135: a watch that waits for the history holds no seat of API Priority and
// Fairness: after the restart of a server all clients come at once, and would keep others
// from being served.
func TestWatchThatWaitsForBackfillHoldsNoSeat(t *testing.T) {
	inBubble(t, storedHistory, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		open := store.Gate("list")
		signal := flowcontrol.NewInitializationSignal()
		ctx := flowcontrol.WithInitializationSignal(testContext(t), signal)
		watching := make(chan error, 1)
		go func() {
			_, err := c.Watch(ctx, "/pods/", everything("5"))
			watching <- err
		}()
		released := make(chan struct{})
		go func() {
			signal.Wait()
			released <- struct{}{}
		}()
		<-released // a deadlock if the watch holds its seat until it may begin
		require.Empty(t, watching, "the watch does not wait")
		open()
		require.NoError(t, <-watching)
	})
}

// Objects of the history of which no attributes can be had, or that can't be decoded,
// cost the history, and nothing else.
func TestBackfillOfBadObjects(t *testing.T) {
	for _, name := range []string{"in the history", "before it", "a list of another version"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := storedHistory()
				config := podConfig(oddLists{store, name == "a list of another version"})
				config.GetAttrsFunc = func(object runtime.Object) (labels.Set, fields.Set, error) {
					pod := object.(*example.Pod)
					if bad := map[string]string{"in the history": "5", "before it": "3"}[name]; pod.ResourceVersion == bad {
						return nil, nil, errors.New("bad")
					}
					return poddata.Attrs(object)
				}
				if name == "before it" {
					store.Compact(4)
				}
				c, err := cacher.New(config)
				require.NoError(t, err)
				defer c.Stop()
				synctest.Wait()
				expectRefused(t, c, "4")
				expectList(t, c, "/pods/", "", "a/one a/two b/three@8")
				put(store, poddata.Pod("a/one"))
				expectReceived(t, watchPods(t, c, "/pods/", "8"), "MODIFIED a/one@9")
			})
		})
	}
}

// oddLists answers lists of exactly a version with another one.
type oddLists struct {
	*memstore.Store
	odd bool
}

func (s oddLists) GetList(ctx context.Context, key string, opts storage.ListOptions, out runtime.Object) error {
	if s.odd {
		opts.ResourceVersion, opts.ResourceVersionMatch = "", ""
	}
	return s.Store.GetList(ctx, key, opts, out)
}

// forgetful is compacted while a watch of its history begins, which the watch does not
// notice, so that events are missing from it.
type forgetful struct{ *memstore.Store }

func (s forgetful) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if opts.ResourceVersion == "2" {
		opts.ResourceVersion = "4"
		s.Compact(4)
	}
	return s.Store.Watch(ctx, key, opts)
}

// A watch that has missed events does not become the history, although they have left
// no trace in what was listed: the version that it has begun after can't be read.
func TestBackfillOfMissingEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(poddata.Pod("a/one")) // 2
		store.History = true
		store.Compact(2)
		put(store, poddata.Pod("a/two")) // 3
		store.Remove("/pods/a/two")      // 4
		store.Touch()
		c := newCache(t, forgetful{store})
		synctest.Wait()
		expectRefused(t, c, "2")
		expectRefused(t, c, "3")
		expectReceived(t, watchPods(t, c, "/pods/", "4"))
	})
}

// Objects that were there before are read by their keys if there are few of them, and
// in one list otherwise.
func TestBackfillReadsFewObjects(t *testing.T) {
	for changed, lists := range map[int]int{0: 1, 1: 1, 5: 5, 6: 1, 100: 1} {
		synctest.Test(t, func(t *testing.T) {
			store := newStore()
			store.History = true
			for i := range 100 {
				put(store, poddata.Pod(fmt.Sprintf("a/%03d", i)))
			}
			store.Compact(101)
			for i := range changed {
				put(store, poddata.Pod(fmt.Sprintf("a/%03d", i), "color=red"))
			}
			store.Touch()
			c := newCache(t, store)
			synctest.Wait()
			filled := store.Requests()["list"]
			got := receivedAll(watchPods(t, c, "/pods/", "101"))
			assert.Len(t, got, changed)
			assert.Equal(t, lists, store.Requests()["list"]-filled, "lists when %d of 100 objects have changed", changed)
		})
	}
}

// REGRESSIONS 152 to 154: what custom resources were before the cache has listed them
// is not decoded, with whatever definition.
func TestNoHistoryOfUntypedObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newWidgetStore(widget("a/one"), widget("a/two")) // 2, 3
		store.History = true
		c := newCache(t, store, ofWidgets)
		synctest.Wait()
		expectRefused(t, c, "2")
		assert.Equal(t, 1, store.Requests()["watch"], "watches of the storage")
		assert.Equal(t, 1, store.Requests()["list"], "lists of the storage")
		w := watchPods(t, c, "/pods/", "3")
		store.Remove("/pods/a/one")
		require.Len(t, received(w), 1)
	})
}
