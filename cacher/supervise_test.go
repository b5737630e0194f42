// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
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
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

const (
	stalledPods = 500
	// stalledWatchers never read; an object takes about stalledBytes.
	stalledWatchers = 10
	stalledBytes    = 10 << 10

	// Initial events are encoded by runs of so many events at most, and so many
	// bytes of objects: one of them in a client's channel holds them all.
	runEvents = 64
	runBytes  = 256 << 10
)

// rewrite writes all pods of the state once, each with content of its own.
func rewrite(store *memstore.Store, round int) {
	for i := range stalledPods {
		filler := strings.Repeat(fmt.Sprintf("%02d%06d", round, i), stalledBytes/8)
		put(store, poddata.Pod(fmt.Sprintf("a/pod-%03d", i), "filler="+filler))
	}
}

// settled waits until the cache has everything, and makes the store forget its
// history, so that the heap is the cache's.
func settled(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
	rv, err := store.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	until(t, "the cache has everything", func() bool { return c.Status().ResourceVersion == rv })
	store.Compact(rv)
}

const stalledWindow = 256 << 10

func smallWindow(c *cacher.Config) { c.WindowBytes = stalledWindow }

// REGRESSIONS 84: clients that never read a byte of their initial events are
// ended, and leave the heap where it was: each began at another state, which
// was rewritten as a whole since.
func TestStalledClientsLeaveTheHeap(t *testing.T) {
	for name, initial := range map[string]func(*storage.ListOptions){
		"from 0": func(*storage.ListOptions) {}, "watch-list": streaming,
	} {
		t.Run(name, func(t *testing.T) {
			store := newStore()
			rewrite(store, 0)
			meters, metric := metered(t)
			c := start(t, store, smallWindow, meters)
			settled(t, store, c)
			before := costNow().heap
			var stalled []*podWatch
			for round := range stalledWatchers {
				stalled = append(stalled, watchPods(t, c, "/pods/", "0", initial))
				rewrite(store, round+1)
				settled(t, store, c)
			}
			// An end is counted when the watcher has left the list of those that are open.
			until(t, "all have ended because their position has left the window", func() bool {
				return len(c.Status().Watchers) == 0 && metric(`watchers_ended_total{reason="expired"}`) == stalledWatchers
			})
			grown := costNow().heap - before
			t.Logf("the heap was %d KiB and has grown by %d KiB", before>>10, grown>>10)
			// The channels hold that much, with the rest of the last run, the window, and
			// the usual noise.
			most := int64(stalledWatchers*((cacher.DefaultWatchBuffer+1)*stalledBytes*11/10+runBytes) + 2*stalledWindow)
			if !raced {
				assert.LessOrEqual(t, grown, most, "the heap has grown by %d KiB; want at most %d KiB", grown>>10, most>>10)
			}
			for i, w := range stalled {
				lines := []string{}
				for line := w.next(); line != "closed"; line = w.next() {
					lines = append(lines, line)
				}
				n := len(lines)
				require.NotEmpty(t, lines, "watcher %d", i)
				assert.Equal(t, "ERROR 410 Expired", lines[n-1], "the last line of watcher %d", i)
				assert.LessOrEqual(t, n, cacher.DefaultWatchBuffer+2, "the lines of watcher %d", i)
			}
			runtime.KeepAlive(c)
		})
	}
}

// The same by what is kept: of the states that were rewritten nothing is left
// but what the clients' channels hold.
func TestStalledClientsKeepNoSnapshot(t *testing.T) {
	store := newStore()
	var pods []weak.Pointer[example.Pod]
	write := func() {
		for i := range stalledPods {
			pod := poddata.Pod(fmt.Sprintf("a/pod-%03d", i))
			pods = append(pods, weak.Make(pod))
			put(store, pod)
		}
	}
	write()
	c := start(t, store, func(c *cacher.Config) { c.WindowBytes = 1 })
	for range stalledWatchers {
		watchPods(t, c, "/pods/", "0")
		write()
		settled(t, store, c)
	}
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
	runtime.KeepAlive(c)
}

// manyPods is a state that does not fit into a watcher's channel.
func manyPods() *memstore.Store {
	store := newStore()
	for i := range 100 {
		put(store, poddata.Pod(fmt.Sprintf("a/pod-%02d", i)))
	}
	return store
}

// REGRESSIONS 57: a client that takes its initial events, but more slowly than
// the window moves on, gets through: the window waits for it.
func TestSlowClientGetsThrough(t *testing.T) {
	meters, metric := metered(t)
	inBubble(t, manyPods, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "0", streaming)
		for i := range 100 {
			burst(store, 10)
			w.expect(fmt.Sprintf("ADDED a/pod-%02d@%d", i, i+2))
			elapse(2500 * time.Millisecond)
		}
		w.expect("BOOKMARK@101 end of initial events")
		for rv := 102; rv <= 1101; rv++ {
			got, want := w.next(), fmt.Sprintf("burst/pod-%d@%d", (rv-102)%10, rv)
			require.True(t, strings.HasSuffix(got, want), "got %q, want %q", got, want)
		}
		elapse(5 * time.Second)
		status := c.Status()
		require.Len(t, status.Watchers, 1)
		assert.False(t, status.Watchers[0].Parked, "the status says %+v", status.Watchers)
		n := metric("window_events")
		assert.LessOrEqual(t, n, float64(500), "the window keeps %v events that nobody waits for", n)
	}, meters)
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
