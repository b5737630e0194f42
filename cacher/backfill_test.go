// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// A client of another server, or of one that was killed, resumes on a cache that has
// just started, at any version that storage has. Nothing was written since, so that
// the cache can have it from nowhere else.
func TestBackfill(t *testing.T) {
	inBubble(t, storedHistory, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		synctest.Wait()
		require.Zero(t, store.Requests()["list"], "a start costs storage nothing")
		require.Equal(t, 1, store.Requests()["watch"], "a start costs storage nothing")
		watchPods(t, c, "/pods/", "1")
		before := store.Requests()
		all := []string{"ADDED a/one@2", "ADDED a/two@3", "MODIFIED a/one@4", "ADDED b/three@5", "DELETED a/two@6", "MODIFIED b/three@7", "ADDED a/two@8"}
		for rv := 1; rv <= 8; rv++ {
			expectReceived(t, watchPods(t, c, "/pods/", fmt.Sprint(rv)), all[rv-1:]...)
		}
		expectReceived(t, watchPods(t, c, "/pods/", "2", selecting("color=red", "")), "ADDED a/one@4", "ADDED b/three@7")
		expectReceived(t, watchPods(t, c, "/pods/", "5", selecting("color!=red", "")), "DELETED a/two@6", "DELETED b/three@7", "ADDED a/two@8")
		exactly := func(o *storage.ListOptions) { o.ResourceVersionMatch = metav1.ResourceVersionMatchExact }
		for rv, want := range map[string]string{"3": "a/one a/two@3", "6": "a/one b/three@6", "8": "a/one a/two b/three@8"} {
			expectList(t, c, "/pods/", rv, want, exactly)
		}
		assert.Equal(t, before["list"], store.Requests()["list"], "lists of the storage")
		put(store, poddata.Pod("a/one", "color=blue"))
		expectReceived(t, watchPods(t, c, "/pods/", "7"), "ADDED a/two@8", "MODIFIED a/one@9")
		assert.Equal(t, 1, store.Watches(), "watches of the storage")
	})
}

// An object that has not changed since the cache has listed it is not made into an
// element once more, and its attributes are not computed twice.
func TestBackfillUsesWhatWasListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		computed := map[string]int{}
		config := podConfig(storedHistory())
		config.GetAttrsFunc = func(object runtime.Object) (labels.Set, fields.Set, error) {
			mu.Lock()
			defer mu.Unlock()
			computed[object.(*example.Pod).ResourceVersion]++
			return poddata.Attrs(object)
		}
		c, err := cacher.New(config)
		require.NoError(t, err)
		defer c.Stop()
		synctest.Wait()
		watchPods(t, c, "/pods/", "1")
		mu.Lock()
		assert.Equal(t, map[string]int{"2": 1, "3": 1, "4": 1, "5": 1, "6": 1, "7": 1, "8": 1}, computed)
		mu.Unlock()
		expectReceived(t, watchPods(t, c, "/pods/", "6"), "MODIFIED b/three@7", "ADDED a/two@8")
	})
}

// A storage that does not say so is not asked for what it has of its history.
func TestBackfillOfOtherStorage(t *testing.T) {
	for name, change := range map[string]func(*memstore.Store, *cacher.Config){
		"it does not say that it keeps its history": func(store *memstore.Store, _ *cacher.Config) { store.History = false },
		"it does not report progress":               func(_ *memstore.Store, config *cacher.Config) { config.WatchProgress = func() bool { return false } },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := storedHistory()
				config := podConfig(store)
				change(store, &config)
				c, err := cacher.New(config)
				require.NoError(t, err)
				defer c.Stop()
				synctest.Wait()
				expectRefused(t, c, "7")
				assert.Equal(t, 1, store.Requests()["watch"], "watches of the storage")
				assert.Zero(t, store.Requests()["list"], "lists of the storage")
			})
		})
	}
}

// Nobody resumes from below what storage has compacted before.
func TestBackfillAfterCompaction(t *testing.T) {
	compacted := func() *memstore.Store {
		store := storedHistory()
		store.Compact(5)
		return store
	}
	inBubble(t, compacted, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) {
		expectRefused(t, c, "4")
		expectReceived(t, watchPods(t, c, "/pods/", "5"), "DELETED a/two@6", "MODIFIED b/three@7", "ADDED a/two@8")
	})
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

// held is a bubble in which requests of a kind wait, in the middle of what the cache
// does to get at the history. The cache is ready all the same.
func held(t *testing.T, kind string, test func(t *testing.T, store *memstore.Store, c *cacher.Cacher, open func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := storedHistory()
		open := store.Gate(kind)
		defer open()
		c, err := cacher.New(podConfig(store))
		require.NoError(t, err)
		defer c.Stop()
		synctest.Wait()
		require.True(t, c.Ready(), "the cache is not ready")
		expectList(t, c, "/pods/", "0", "a/one a/two b/three@8")
		test(t, store, c, open)
	})
}

// The requests of a cache over a storage that streams its state: progress is asked
// for, and the state before the changes is listed, for the history only.
var forHistory = []string{"progress", "list"}

// A watch from an earlier version waits until the window has it; others don't. Events
// that are written meanwhile come after the history.
func TestWatchWaitsForBackfill(t *testing.T) {
	for _, kind := range forHistory {
		t.Run(kind, func(t *testing.T) {
			held(t, kind, func(t *testing.T, store *memstore.Store, c *cacher.Cacher, open func()) {
				earlier := make(chan *podWatch, 1)
				go func() { earlier <- watchPods(t, c, "/pods/", "5") }()
				later := watchPods(t, c, "/pods/", "8")
				put(store, poddata.Pod("a/one", "color=blue"))
				expectReceived(t, later, "MODIFIED a/one@9")
				elapse(time.Second)
				require.Empty(t, earlier, "the watch does not wait")
				open()
				expectReceived(t, <-earlier, "DELETED a/two@6", "MODIFIED b/three@7", "ADDED a/two@8", "MODIFIED a/one@9")
			})
		})
	}
}

// REGRESSIONS 135: a watch that waits for the history holds no seat of API Priority and
// Fairness: after the restart of a server all clients come at once, and would keep others
// from being served.
func TestWatchThatWaitsForBackfillHoldsNoSeat(t *testing.T) {
	held(t, "list", func(t *testing.T, _ *memstore.Store, c *cacher.Cacher, open func()) {
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

// A compaction in the middle makes the cache go back as far as it still can.
func TestCompactionDuringBackfill(t *testing.T) {
	for _, kind := range forHistory {
		t.Run(kind, func(t *testing.T) {
			held(t, kind, func(t *testing.T, store *memstore.Store, c *cacher.Cacher, open func()) {
				earlier := make(chan *podWatch, 1)
				go func() { earlier <- watchPods(t, c, "/pods/", "5") }()
				elapse(time.Second)
				store.Compact(6)
				open()
				expectReceived(t, <-earlier, "ERROR 410 Expired", "closed")
				expectRefused(t, c, "5")
				expectReceived(t, watchPods(t, c, "/pods/", "6"), "MODIFIED b/three@7", "ADDED a/two@8")
			})
		})
	}
}

// A storage that hangs keeps a client from an earlier version for ten seconds.
func TestBackfillThatHangs(t *testing.T) {
	for _, kind := range forHistory {
		t.Run(kind, func(t *testing.T) {
			held(t, kind, func(t *testing.T, store *memstore.Store, c *cacher.Cacher, _ func()) {
				began := time.Now()
				expectReceived(t, watchPods(t, c, "/pods/", "5"), "ERROR 410 Expired", "closed")
				assert.LessOrEqual(t, time.Since(began), 10*time.Second)
				elapse(time.Minute)
				began = time.Now()
				expectRefused(t, c, "5")
				assert.Zero(t, time.Since(began), "storage has failed a moment ago, and the watch has waited")
				assert.Equal(t, 1, store.Watches(), "watches of the storage")
			})
		})
	}
}

// A storage that takes longer than clients wait brings the history for those that come
// later.
func TestSlowBackfill(t *testing.T) {
	for _, kind := range forHistory {
		t.Run(kind, func(t *testing.T) {
			held(t, kind, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher, open func()) {
				expectRefused(t, c, "5")
				elapse(30 * time.Second)
				open()
				synctest.Wait()
				expectReceived(t, watchPods(t, c, "/pods/", "5"), "DELETED a/two@6", "MODIFIED b/three@7", "ADDED a/two@8")
			})
		})
	}
}

// A client that leaves does not wait, and neither does Stop.
func TestEndsDuringBackfill(t *testing.T) {
	for _, kind := range forHistory {
		t.Run(kind, func(t *testing.T) {
			held(t, kind, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher, _ func()) {
				began := time.Now()
				ctx, leave := context.WithCancel(t.Context())
				var lines [2][]string
				done := make(chan int, 2)
				for i, ctx := range []context.Context{ctx, t.Context()} {
					go func() {
						w, err := c.Watch(ctx, "/pods/", everything("5"))
						if i == 1 {
							assert.True(t, apierrors.IsTooManyRequests(err), "a watch that Stop has met: %v", err)
						} else if assert.NoError(t, err) {
							for event := range w.ResultChan() {
								lines[i] = append(lines[i], line(event))
							}
						}
						done <- i
					}()
				}
				synctest.Wait()
				leave()
				assert.Equal(t, 0, <-done)
				assert.Empty(t, lines[0])
				c.Stop()
				assert.Equal(t, 1, <-done)
				assert.Zero(t, time.Since(began))
			})
		})
	}
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
	for changed, lists := range map[int]int{0: 2, 1: 2, 5: 6, 6: 2, 100: 2} { // one finds out where to begin
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
			got := receivedAll(watchPods(t, c, "/pods/", "101"))
			assert.Len(t, got, changed)
			assert.Equal(t, lists, store.Requests()["list"], "lists when %d of 100 objects have changed", changed)
		})
	}
}

// The window takes no more of the history than it has room for in its half.
func TestBackfillIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		store.History = true
		for i := range 1000 {
			put(store, poddata.Pod(fmt.Sprintf("a/%d", i%10), fmt.Sprintf("size=%d", i))) // up to 1001
			if i%3 == 0 {
				store.Remove(fmt.Sprintf("/pods/a/%d", i%10))
			}
		}
		rv, err := store.GetCurrentResourceVersion(t.Context())
		require.NoError(t, err)
		c := newCache(t, store, func(config *cacher.Config) { config.WindowBytes = 200_000 })
		synctest.Wait()
		expectRefused(t, c, "2")
		elapse(2 * time.Second) // the window is trimmed when its events were dispatched
		status, err := c.StatusPage(cacher.WatcherQuery{})
		require.NoError(t, err)
		oldest := status.OldestResourceVersion
		assert.Greater(t, oldest, uint64(100))
		assert.Less(t, oldest, rv-50)
		assert.LessOrEqual(t, status.WindowBytes, int64(100_000))
		assert.Greater(t, status.WindowBytes, int64(50_000))
		expectRefused(t, c, fmt.Sprint(oldest-1))
		assert.Len(t, receivedAll(watchPods(t, c, "/pods/", fmt.Sprint(oldest))), int(rv-oldest))
	})
}

// Events of the history leave the window when they are as old as all events, from the
// time on at which they were fetched, and can be fetched again.
func TestBackfillAges(t *testing.T) {
	many := func() *memstore.Store {
		store := storedHistory()
		for i := range 200 {
			put(store, poddata.Pod("a/one", fmt.Sprintf("size=%d", i))) // up to 208
		}
		return store
	}
	inBubble(t, many, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) {
		expectReceived(t, watchPods(t, c, "/pods/b/", "6"), "MODIFIED b/three@7")
		elapse(cacher.DefaultEventsHistoryWindow - time.Second)
		assert.EqualValues(t, 6, c.Status().OldestResourceVersion)
		elapse(3 * time.Second)
		assert.Greater(t, c.Status().OldestResourceVersion, uint64(7))
		expectReceived(t, watchPods(t, c, "/pods/b/", "6"), "MODIFIED b/three@7")
	})
}

// Watches that come together share one watch of storage, from the lowest of their
// versions on; a later one from further back has the missing piece fetched, and one
// from within nothing.
func TestBackfillInPieces(t *testing.T) {
	inBubble(t, storedHistory, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		all := []string{"ADDED a/one@2", "ADDED a/two@3", "MODIFIED a/one@4", "ADDED b/three@5", "DELETED a/two@6", "MODIFIED b/three@7", "ADDED a/two@8"}
		synctest.Wait()
		before := store.Requests()["watch"]
		for round, lowest := range []int{5, 2, 3, 1} {
			var watches [8]*podWatch
			var together sync.WaitGroup
			for rv := lowest; rv <= 7; rv++ {
				together.Go(func() { watches[rv] = watchPods(t, c, "/pods/", fmt.Sprint(rv)) })
			}
			together.Wait()
			for rv := lowest; rv <= 7; rv++ {
				expectReceived(t, watches[rv], all[rv-1:]...)
			}
			assert.Equal(t, before+[]int{1, 2, 2, 3}[round], store.Requests()["watch"], "watches of the storage from %d", lowest)
		}
	})
}

// A cache that sleeps fetches again what it needs when it wakes up.
func TestBackfillAfterSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storedHistory()
		c := newCache(t, store, func(config *cacher.Config) { config.IdleTimeout = time.Minute })
		elapse(3 * time.Minute)
		require.Zero(t, store.Watches(), "the cache does not sleep")
		put(store, poddata.Pod("a/one", "color=blue"))
		expectReceived(t, watchPods(t, c, "/pods/", "7"), "ADDED a/two@8", "MODIFIED a/one@9")
	})
}

// A cache that lists again may have missed events before without knowing it. Its clients
// list as well, and do not resume over the gap.
func TestNoBackfillAfterARelist(t *testing.T) {
	inBubble(t, storedHistory, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		synctest.Wait()
		miss(store, func() { put(store, poddata.Pod("a/one", "color=blue")) })
		store.BreakWatches(apierrors.NewResourceExpired("compacted"))
		elapse(time.Minute)
		expectList(t, c, "/pods/a/one", "", "a/one@9", func(o *storage.ListOptions) { o.Recursive = false })
		expectReceived(t, watchPods(t, c, "/pods/", "8"), "ERROR 410 Expired", "closed")
	})
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
		assert.Zero(t, store.Requests()["list"], "lists of the storage")
		w := watchPods(t, c, "/pods/", "3")
		store.Remove("/pods/a/one")
		require.Len(t, received(w), 1)
	})
}
