// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/polling"
)

// pollFrom has parked watchers do without goroutines, but for so many.
func pollFrom(t *testing.T, goroutines int) {
	limits := polling.Defaults
	limits.Goroutines = goroutines
	polling.Set(limits)
	t.Cleanup(func() { polling.Set(polling.Defaults) })
}

// parks is a cache whose watchers are parked by a few events: none waits for them.
func parks(change ...func(*cacher.Config)) func(*cacher.Config) {
	return func(c *cacher.Config) {
		c.WatchBuffer, c.DispatchBudget = 4, -1
		for _, f := range change {
			f(c)
		}
	}
}

// takeAll takes what is in the channel now, n events at most.
func (r *counter) takeAll(n int) {
	for ; n > 0 && r.err == nil; n-- {
		select {
		case event, ok := <-r.ResultChan():
			r.take(event, ok)
		default:
			return
		}
	}
}

// drain has one goroutine read all watches, up to n events of each at a time with a
// millisecond in between, until they have the event at rv. drain fails after an hour.
func drain(t *testing.T, watches []*counter, n int, rv uint64) {
	t.Helper()
	began := time.Now()
	for left := watches; len(left) > 0; {
		var rest []*counter
		for _, w := range left {
			if w.takeAll(n); w.last < rv && w.err == nil {
				rest = append(rest, w)
			}
		}
		if left = rest; len(left) > 0 {
			require.Less(t, time.Since(began), time.Hour, "%d watchers get nothing", len(left))
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
	}
}

// opened is open for many: the goroutines that begin the watches end meanwhile.
func opened(t *testing.T, c *cacher.Cacher, store *memstore.Store, n int) (watches []*counter) {
	for len(watches) < n {
		watches = append(watches, open(t, c, store, min(500, n-len(watches)))...)
		synctest.Wait()
	}
	return watches
}

// 10,000 watchers that are parked at once need no 10,000 goroutines, and each gets
// every event once and in order when all of them read again at once.
func TestParkedWatchersNeedNoGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const watchers, events = 10_000, 30
		store := newStore()
		c := start(t, store, withLongHistory, parks())
		watches := opened(t, c, store, watchers)
		before := runtime.NumGoroutine()
		for round := range 2 { // those that were parked once may be parked again
			rv := burst(store, events)
			synctest.Wait()
			require.Equal(t, watchers, c.Status().Watches.Parked, "the parked watchers of round %d", round)
			more := runtime.NumGoroutine() - before
			assert.LessOrEqual(t, more, polling.Defaults.Goroutines+runtime.GOMAXPROCS(0), "the goroutines of round %d", round)
			assert.GreaterOrEqual(t, more, polling.Defaults.Goroutines, "the first ones have goroutines of their own")
			time.Sleep(time.Minute) // nobody reads
			drain(t, watches, events, rv)
			for i, w := range watches {
				require.NoError(t, w.err, "watcher %d, after %d events", i, w.events)
				require.Equal(t, events*(round+1), w.events, "the events of watcher %d", i)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			require.Equal(t, watchers, c.Status().Watches.Live, "the live watchers after round %d", round)
			assert.LessOrEqual(t, runtime.NumGoroutine(), before, "the goroutines after round %d", round)
		}
	})
}

// Clients that take one event now and then get every event once and in order, also when
// changes go on meanwhile, and while others never read.
func TestSlowClientsOfPolledWatchers(t *testing.T) {
	for _, goroutines := range []int{0, 1, 5} {
		t.Run(fmt.Sprintf("%d goroutines", goroutines), func(t *testing.T) {
			pollFrom(t, goroutines)
			synctest.Test(t, func(t *testing.T) {
				store := newStore()
				c := start(t, store, withLongHistory, parks())
				watches := opened(t, c, store, 20)
				slow, silent, leaving := watches[:10], watches[10:15], watches[15:]
				events := 0
				for second := range 60 {
					if second < 30 {
						burst(store, second%4)
						events += second % 4
					}
					for i, w := range slow {
						w.takeAll(1 + i%3)
					}
					if second%10 == 5 {
						leaving[second/10%5].Stop()
					}
					time.Sleep(time.Second)
				}
				last := burst(store, 1)
				drain(t, slow, 3, last)
				drain(t, silent, 100, last)
				for i, w := range append(slow, silent...) {
					require.NoError(t, w.err, "watcher %d", i)
					require.Equal(t, events+1, w.events, "the events of watcher %d", i)
				}
				synctest.Wait()
				for i, w := range leaving {
					w.takeAll(100)
					require.ErrorContains(t, w.err, "closed", "watcher %d, whose client has left", i)
				}
				require.Zero(t, c.Status().Watches.Parked)
			})
		})
	}
}

// A polled watcher is ended at its ParkedTimeout, and not before, with its channel
// closed behind what is in it.
func TestParkedTimeoutOfPolledWatchers(t *testing.T) {
	pollFrom(t, 3)
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		meters, metric := metered(t)
		c := start(t, store, meters, withLongHistory, parks(func(c *cacher.Config) { c.ParkedTimeout = 10 * time.Second }))
		watches := opened(t, c, store, 20)
		parked := time.Now()
		burst(store, 10)
		synctest.Wait()
		require.Equal(t, 20, c.Status().Watches.Parked)
		time.Sleep(time.Until(parked.Add(10*time.Second - time.Millisecond)))
		synctest.Wait()
		require.Equal(t, 20, c.Status().Watches.Parked, "watchers before their timeout")
		time.Sleep(time.Second) // the supervisor looks once a second
		synctest.Wait()
		require.Zero(t, c.Status().Watches.Parked, "watchers after their timeout")
		require.EqualValues(t, 20, metric(`watchers_ended_total{reason="parked"}`))
		for i, w := range watches {
			w.takeAll(100)
			require.ErrorContains(t, w.err, "closed", "watcher %d", i)
			require.Equal(t, 4, w.events, "the events of watcher %d", i)
		}
	})
}

// The deadline of a request ends its watch at once, whether the watcher is polled or
// not, and so does a client that leaves.
func TestDeadlineOfPolledWatchers(t *testing.T) {
	pollFrom(t, 0)
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		c := start(t, store, withLongHistory, parks())
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		var watches []*counter
		for range 10 {
			w, err := c.Watch(ctx, "/pods/", storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true})
			require.NoError(t, err)
			watches = append(watches, &counter{Interface: w})
		}
		synctest.Wait()
		burst(store, 10)
		synctest.Wait()
		require.Equal(t, 10, c.Status().Watches.Parked)
		watches[0].Stop()
		synctest.Wait()
		require.Equal(t, 9, c.Status().Watches.Parked, "after one client has left")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.Zero(t, c.Status().Watches.Parked, "after the deadline")
		for i, w := range watches {
			w.takeAll(100)
			require.ErrorContains(t, w.err, "closed", "watcher %d", i)
		}
	})
}

// A polled watcher whose events leave the window is told 410 behind what is in its
// channel, when its client reads again; until then it has no goroutine either.
func TestPolledWatchersAreToldThatTheyFellBehind(t *testing.T) {
	pollFrom(t, 2)
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		meters, metric := metered(t)
		c := start(t, store, meters, parks(func(c *cacher.Config) { c.EventsHistoryWindow, c.WindowBytes = time.Second, 100_000 }))
		watches := opened(t, c, store, 20)
		before := runtime.NumGoroutine()
		burst(store, 10)
		synctest.Wait()
		require.Equal(t, 20, c.Status().Watches.Parked)
		for range 10 { // the window forgets the burst
			time.Sleep(time.Second)
			burst(store, 200)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Zero(t, c.Status().Watches.Parked)
		assert.LessOrEqual(t, runtime.NumGoroutine()-before, 2+1, "the goroutines of watchers that are still to be told")
		for i, w := range watches[10:] { // one has left before it is told
			if i == 0 {
				w.Stop()
			}
		}
		for range 20 {
			for _, w := range watches {
				w.takeAll(100)
			}
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
		}
		told := 0
		for i, w := range watches {
			require.Error(t, w.err, "watcher %d", i)
			if w.events > 4 {
				continue // it had taken more before the window moved on
			}
			if w.err.Error() != fmt.Sprintf("closed at %d", w.last) {
				require.ErrorContains(t, w.err, "410", "watcher %d", i)
				told++
			}
		}
		require.Equal(t, 19, told)
		require.EqualValues(t, 20, metric(`watchers_ended_total{reason="expired"}`))
		synctest.Wait()
		assert.LessOrEqual(t, runtime.NumGoroutine(), before, "the goroutines when all are told")
	})
}

// Stop ends polled watchers at any moment, also while they are brought further.
func TestStopWithPolledWatchers(t *testing.T) {
	pollFrom(t, 1)
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			store := newStore()
			c := start(t, store, withLongHistory, parks())
			watches := opened(t, c, store, 50)
			burst(store, 50)
			stopped := make(chan struct{})
			pause := time.Duration(random.IntN(5000)) * time.Microsecond
			go func() {
				defer close(stopped)
				time.Sleep(pause)
				c.Stop()
			}()
			for _, w := range watches[:25] {
				go func() { w.readTo(t.Context(), 1<<60) }()
			}
			for _, w := range watches[25:30] {
				pause := time.Duration(random.IntN(5000)) * time.Microsecond
				go func() {
					time.Sleep(pause)
					w.Stop()
				}()
			}
			<-stopped
			time.Sleep(5 * time.Millisecond) // until the last client has left
			synctest.Wait()
			for i, w := range watches {
				if i >= 25 {
					w.takeAll(100)
				}
				require.ErrorContains(t, w.err, "closed", "seed %d: watcher %d", seed, i)
			}
		})
	}
}
