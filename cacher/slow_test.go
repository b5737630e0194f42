// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/internal/race"
)

// counter reads a watch to its end or to a version, and checks that what it
// gets is in order and without gap.
type counter struct {
	watch.Interface
	events int
	last   uint64
	err    error
}

// readTo reads until the event at rv has come.
func (r *counter) readTo(ctx context.Context, rv uint64) {
	for r.last < rv && r.err == nil {
		select {
		case event, ok := <-r.ResultChan():
			r.take(event, ok)
		case <-ctx.Done():
			r.err = fmt.Errorf("at %d, waiting for %d: %w", r.last, rv, ctx.Err())
		}
	}
}

func (r *counter) take(event watch.Event, ok bool) {
	switch {
	case !ok:
		r.err = fmt.Errorf("closed at %d", r.last)
		return
	case event.Type == watch.Error:
		r.err = fmt.Errorf("at %d: %s", r.last, line(event))
		return
	}
	accessor, err := meta.Accessor(event.Object)
	if err != nil {
		r.err = err
		return
	}
	rv, err := storage.APIObjectVersioner{}.ParseResourceVersion(accessor.GetResourceVersion())
	if err != nil {
		r.err = err
		return
	}
	if r.last != 0 && rv != r.last+1 {
		r.err = fmt.Errorf("%d comes after %d", rv, r.last)
		return
	}
	r.last, r.events = rv, r.events+1
}

// open opens n watches over everything from the store's current version.
func open(t *testing.T, c *cacher.Cacher, store *memstore.Store, n int) (watches []*counter) {
	t.Helper()
	rv, err := store.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	for range n {
		w, err := c.Watch(t.Context(), "/pods/", storage.ListOptions{
			ResourceVersion: fmt.Sprint(rv), Predicate: storage.Everything, Recursive: true,
		})
		require.NoError(t, err)
		t.Cleanup(w.Stop)
		watches = append(watches, &counter{Interface: w, last: rv})
	}
	return watches
}

// withLongHistory keeps events however slow the machine is.
func withLongHistory(config *cacher.Config) { config.EventsHistoryWindow = time.Hour }

// burst writes n changes of 100 pods at full speed and returns the last
// version.
func burst(store *memstore.Store, n int) (last uint64) {
	for i := range n {
		last = put(store, poddata.Pod(fmt.Sprintf("burst/pod-%d", i%100)))
	}
	return last
}

// keepWriting changes 300 pods at full speed until end is called.
func keepWriting(store *memstore.Store) (end func()) {
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				put(store, poddata.Pod(fmt.Sprintf("a/pod-%d", i%300)))
			}
		}
	})
	return func() {
		close(stop)
		writer.Wait()
	}
}

func readAll(ctx context.Context, watches []*counter, rv uint64) {
	var wg sync.WaitGroup
	for _, w := range watches {
		wg.Go(func() { w.readTo(ctx, rv) })
	}
	wg.Wait()
}

// Regression 47: a burst at full speed closes no healthy watcher. Watchers that never
// read cost the others nothing, and resume whole when they read again.
func TestNeverReadingWatchersHarmNobody(t *testing.T) {
	const healthy, silent = 990, 10 // so many get events in rounds
	events := 3_000
	if race.Enabled { // a send costs fifty times as much
		events = 500
	}
	store := newStore()
	c := start(t, store, withLongHistory)
	watches := open(t, c, store, healthy)
	mute := open(t, c, store, silent)
	last := make(chan uint64, 1)
	go func() { last <- burst(store, events) }()
	rv := <-last
	readAll(testContext(t), watches, rv)
	for i, w := range watches {
		require.NoError(t, w.err, "healthy watcher %d, after %d events", i, w.events)
		assert.Equal(t, events, w.events, "the events of healthy watcher %d", i)
	}
	until(t, "the silent ones are parked", func() bool {
		parked := 0
		for _, w := range c.Status().Watchers {
			if w.Parked && w.Queued > 0 {
				parked++
			}
		}
		return parked == silent
	})
	readAll(testContext(t), mute, rv)
	for i, w := range mute {
		require.NoError(t, w.err, "silent watcher %d, after %d events", i, w.events)
		assert.Equal(t, events, w.events, "the events of silent watcher %d", i)
	}
}

// REGRESSIONS 46: Stop returns while events come at full speed, and leaves
// nothing behind (goleak looks when the tests are done).
func TestStopUnderLoad(t *testing.T) {
	for round := range 3 {
		store := newStore()
		c := start(t, store)
		watches := open(t, c, store, 50)
		_ = open(t, c, store, 5) // never read
		end := keepWriting(store)
		var readers sync.WaitGroup
		for _, w := range watches {
			readers.Go(func() { w.readTo(testContext(t), 1<<62) })
		}
		until(t, "events flow", func() bool { return c.Status().ResourceVersion > uint64(100*(round+1)) })
		var stops sync.WaitGroup
		for range 3 {
			stops.Go(c.Stop)
		}
		stops.Wait()
		readers.Wait() // all watches end
		end()
		assert.Zero(t, store.Watches(), "watches of the storage are left")
		assert.Error(t, c.GetList(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true}, &example.PodList{}), "a stopped cache lists")
		_, err := c.Watch(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true})
		assert.Error(t, err, "a stopped cache watches")
	}
}

const (
	stalledPods     = 500
	stalledWatchers = 10 // that never read
	// Initial events are encoded by runs of so many events at most: one of them in a
	// client's channel holds them all.
	runEvents = 64
)

// REGRESSIONS 84: clients that never read their initial events are ended, and of the
// states that they began with, which were rewritten since, nothing is left but what
// their channels hold.
func TestStalledClientsKeepNoSnapshot(t *testing.T) {
	for name, initial := range map[string]func(*storage.ListOptions){
		"from 0": func(*storage.ListOptions) {}, "watch-list": streaming,
	} {
		t.Run(name, func(t *testing.T) {
			store := newStore()
			var pods []weak.Pointer[example.Pod]
			write := func() (rv uint64) {
				for i := range stalledPods {
					pod := poddata.Pod(fmt.Sprintf("a/pod-%03d", i))
					pods = append(pods, weak.Make(pod))
					rv = put(store, pod)
				}
				return rv
			}
			write()
			meters, metric := metered(t)
			c := start(t, store, meters, func(c *cacher.Config) { c.WindowBytes = 1 })
			var stalled []*podWatch
			for range stalledWatchers {
				stalled = append(stalled, watchPods(t, c, "/pods/", "0", initial))
				rv := write()
				until(t, "the cache has everything", func() bool { return c.Status().ResourceVersion == rv })
				store.Compact(rv) // what is left is the cache's
			}
			// An end is counted when the watcher has left the list of those that are open.
			until(t, "all have ended because their position has left the window", func() bool {
				return len(c.Status().Watchers) == 0 && metric(`watchers_ended_total{reason="expired"}`) == stalledWatchers
			})
			most := stalledPods + stalledWatchers*(cacher.DefaultWatchBuffer+1+runEvents) + 2
			until(t, "the states that were rewritten are free", func() bool {
				runtime.GC()
				left := 0
				for _, pod := range pods {
					if pod.Value() != nil {
						left++
					}
				}
				return left <= most
			})
			for i, w := range stalled {
				for range cacher.DefaultWatchBuffer {
					w.next()
				}
				assert.Equal(t, "ERROR 410 Expired", w.next(), "the last line of watcher %d", i)
			}
			runtime.KeepAlive(c)
		})
	}
}

// manyPods is a state that does not fit into a watcher's channel.
func manyPods() *memstore.Store {
	store := newStore()
	for i := range 100 {
		put(store, poddata.Pod(fmt.Sprintf("a/pod-%02d", i)))
	}
	return store
}

// Regression 39: a watcher may be ended by the supervisor, its client, its request's
// context and Stop, at once or one after the other, while bookmarks are sent. Its channel
// is closed once, nothing is sent after that, and no goroutine is left.
func TestEndsOfAWatcherMeet(t *testing.T) {
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 84))
		inBubble(t, manyPods, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
			var watches []*podWatch
			for range 1 + random.IntN(8) {
				change := []func(*storage.ListOptions){streaming, withBookmarks, selecting("", "")}[random.IntN(3)]
				watches = append(watches, watchPods(t, c, "/pods/", []string{"0", "101"}[random.IntN(2)], change))
			}
			var ends sync.WaitGroup
			for range random.IntN(8) {
				switch w := watches[random.IntN(len(watches))]; random.IntN(6) {
				case 0:
					burst(store, 1+random.IntN(50))
				case 1: // to when the supervisor looks
					elapse(time.Second - time.Duration(time.Now().Nanosecond()))
				case 2:
					elapse(time.Duration(random.IntN(2000)) * time.Millisecond)
				case 3:
					ends.Go(w.Stop)
				case 4:
					ends.Go(w.cancel)
				case 5:
					ends.Go(func() {
						select {
						case <-w.ResultChan():
						default:
						}
					})
				}
			}
			if random.IntN(2) == 0 {
				elapse(time.Second - time.Duration(time.Now().Nanosecond()))
			}
			ends.Go(c.Stop)
			ends.Wait()
			for _, w := range watches {
				w.expectClosed()
			}
		}, func(c *cacher.Config) {
			c.WatchBuffer, c.DispatchBudget, c.WindowBytes = 1+random.IntN(3), -1, int64(1+random.IntN(20_000))
			c.BookmarkInterval = time.Second
			c.BoundInitialEvents(time.Duration(1+random.IntN(3))*time.Second, 0)
		})
	}
}

// Regression 110: WindowBytes bounds what the window keeps in memory, also of
// types that have no serialization to ask for their size, as internal ones:
// the Pods of this test are of such a type.
func TestWindowBytesBoundsWhatEventsTake(t *testing.T) {
	const (
		size    = 200_000
		bound   = 4 << 20
		patches = 300
	)
	store := newStore(poddata.Pod("ns/large"))
	c := start(t, store, func(c *cacher.Config) { c.WindowBytes = bound })
	w := watchPods(t, c, "/pods/", "0")
	w.next()
	for i := range patches {
		pod := poddata.Pod("ns/large")
		pod.Annotations = map[string]string{fmt.Sprint("patch-", i): strings.Repeat("x", size)}
		put(store, pod)
		w.next() // so that the event is dispatched, and may leave the window
	}
	until(t, "the window is within its bound", func() bool { return c.Status().WindowBytes <= bound })
	status := c.Status()
	assert.LessOrEqual(t, status.WindowEvents*size, bound, "the window has %d events with %d bytes each", status.WindowEvents, size)
	assert.NotZero(t, status.WindowEvents, "the window has no events")
	assert.GreaterOrEqual(t, status.ObjectBytes, int64(size), "the cached object is said to take %d bytes; one string of it takes %d", status.ObjectBytes, size)
}

// Regression 106: while the dispatcher is stuck, here because it waits for a
// watcher that does not read, the window takes no more than its ceiling. Those
// who have lost events are told, those who come later are served, and the cache
// goes on.
func TestWindowHasACeiling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const events, size, most = 64, 1 << 20, 20 << 20
		store := newStore(poddata.Pod("a/one"))
		c := start(t, store, func(c *cacher.Config) {
			c.WindowBytes, c.WatchBuffer = 1<<20, 2
			c.DispatchBudget = 700 * time.Millisecond // which ends at no tick of a second
		})
		reads := watchPods(t, c, "/pods/", "2")
		silent := watchPods(t, c, "/pods/b/", "2")
		synctest.Wait()
		for range 4 {
			put(store, poddata.Pod("b/one")) // 3 to 6: the dispatcher waits at 5
			synctest.Wait()
		}
		reads.expect("ADDED b/one@3", "MODIFIED b/one@4")
		for range events {
			pod := poddata.Pod("a/one")
			pod.Annotations = map[string]string{"large": strings.Repeat("x", size)}
			put(store, pod)
			synctest.Wait()
		}
		status := c.Status()
		assert.LessOrEqual(t, status.WindowBytes, int64(most), "the bytes in the window, of %d events", status.WindowEvents)
		assert.GreaterOrEqual(t, status.WindowEvents, 10, "the events in the window, of %d bytes", status.WindowBytes)
		assert.EqualValues(t, 6+events, status.ResourceVersion)
		last := fmt.Sprint(status.ResourceVersion)
		late := watchPods(t, c, "/pods/", last)
		elapse(5 * time.Minute) // in the bubble: until the budget is spent
		for got := reads.next(); got != "ERROR 410 Expired"; got = reads.next() {
			require.True(t, strings.HasPrefix(got, "MODIFIED"), "got %s", got)
		}
		reads.expect("closed")
		silent.expect("ADDED b/one@3", "MODIFIED b/one@4")
		put(store, poddata.Pod("a/two"))
		late.expect(fmt.Sprintf("ADDED a/two@%d", 7+events))
		synctest.Wait()
		assert.LessOrEqual(t, c.Status().WindowBytes, int64(4<<20), "the bytes in the window after the big event")
	})
}
