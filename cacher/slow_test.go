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

func readAll(ctx context.Context, watches []*counter, rv uint64) {
	var wg sync.WaitGroup
	for _, w := range watches {
		wg.Go(func() { w.readTo(ctx, rv) })
	}
	wg.Wait()
}

// REGRESSIONS 47: a burst at full speed closes no healthy watcher.
func TestBurstClosesNobody(t *testing.T) {
	const watchers, events = 100, 20_000
	store := newStore()
	c := start(t, store, withLongHistory)
	watches := open(t, c, store, watchers)
	last := make(chan uint64, 1)
	go func() { last <- burst(store, events) }()
	readAll(testContext(t), watches, <-last)
	for i, w := range watches {
		require.NoError(t, w.err, "watcher %d, after %d events", i, w.events)
		assert.Equal(t, events, w.events, "the events of watcher %d", i)
	}
}

// Watchers that never read cost the others nothing, and resume whole when they
// read again.
func TestNeverReadingWatchersHarmNobody(t *testing.T) {
	const healthy, silent = 990, 10 // so many get events in rounds
	events := 20_000
	if race.Enabled { // a send costs fifty times as much
		events = 2_000
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
	for round := range 5 {
		store := newStore()
		c := start(t, store)
		watches := open(t, c, store, 50)
		_ = open(t, c, store, 5) // never read
		stop := make(chan struct{})
		var writers sync.WaitGroup
		writers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					put(store, poddata.Pod(fmt.Sprintf("load/pod-%d", i%100)))
				}
			}
		})
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
		close(stop)
		writers.Wait()
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

// InitialEventsBytes bounds what the initial events of slow clients keep: the
// heaviest are ended first, which are those that began first.
func TestInitialEventsBytes(t *testing.T) {
	var state int64 // what all pods take
	inBubble(t, manyPods, func(_ *testing.T, _ *memstore.Store, c *cacher.Cacher) { state = c.Status().ObjectBytes })
	for name, test := range map[string]struct{ bytes, ended int64 }{
		"default": {0, 0}, "two states": {state*2 + state/2, 2}, "one state": {state + state/2, 3}, "none": {state / 2, 4},
	} {
		t.Run(name, func(t *testing.T) {
			meters, metric := metered(t)
			inBubble(t, manyPods, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				var watches []*podWatch
				write := func() {
					for i := range 100 {
						put(store, poddata.Pod(fmt.Sprintf("a/pod-%02d", i)))
					}
					synctest.Wait()
				}
				for range 4 {
					watches = append(watches, watchPods(t, c, "/pods/", "0"))
					synctest.Wait()
					write()
				}
				elapse(1500 * time.Millisecond)
				kept := metric(`bytes{part="snapshots"}`)
				assert.Equal(t, test.ended, int64(metric(`watchers_ended_total{reason="heavy"}`)), "the watchers that were ended; %v bytes are kept", kept)
				assert.LessOrEqual(t, kept, float64(max(test.bytes, 1<<20)), "the bytes that are kept")
				for i, w := range watches {
					for range cacher.DefaultWatchBuffer {
						w.next()
					}
					want := "ADDED a/pod-16"
					if i < int(test.ended) {
						want = "ERROR 410 Expired"
					}
					got := w.next()
					assert.True(t, strings.HasPrefix(got, want), "watcher %d got %q, want %q", i, got, want)
				}
			}, meters, func(c *cacher.Config) { c.BoundInitialEvents(0, test.bytes) })
		})
	}
}

// A watcher may be ended by the supervisor, its client, its request's context
// and Stop, at once or one after the other. Its channel is closed once, nothing
// is sent after that, and no goroutine is left.
func TestEndsOfAWatcherMeet(t *testing.T) {
	for seed := range uint64(150) {
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
			c.BoundInitialEvents(time.Duration(1+random.IntN(3))*time.Second, 0)
		})
	}
}
