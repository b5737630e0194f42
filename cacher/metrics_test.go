// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// The state of a cache is measured once a second: what it holds, how far back its
// window reaches, and its versions beside the storage's.
func TestMetricsOfTheState(t *testing.T) {
	meters, metric := metered(t)
	inBubble(t, manyPods, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		elapse(5 * time.Second)
		w := watchPods(t, c, "/pods/", "101")
		put(store, poddata.Pod("a/pod-00"))
		expectReceived(t, w, "MODIFIED a/pod-00@102")
		elapse(20 * time.Second)
		s := metric("storage_silence_seconds")
		assert.EqualValues(t, 20, s, "the storage was silent for %v s", s)
		for series, want := range map[string]float64{
			"ready": 1, "paused": 0, "objects": 100, "window_events": 1, "watchers": 1,
			"resource_version": 102, "oldest_resource_version": 101, "storage_resource_version": 102,
		} {
			assert.Equal(t, want, metric(series), series)
		}
		s = metric("window_seconds")
		assert.GreaterOrEqual(t, s, float64(24), "how many seconds the window reaches back")
		assert.LessOrEqual(t, s, float64(26), "how many seconds the window reaches back")
		objects, indexes := metric(`bytes{part="objects"}`), metric(`bytes{part="indexes"}`)
		assert.GreaterOrEqual(t, objects, float64(100*100), "the bytes of the objects")
		assert.GreaterOrEqual(t, indexes, float64(100*16), "the bytes of the indexes")
		assert.LessOrEqual(t, indexes, objects, "the bytes of the indexes, and of the objects")
		assert.NotZero(t, metric(`bytes{part="window"}`), "the bytes of the window")
		assert.Equal(t, c.Status().ObjectBytes, int64(objects), "the metric of the objects' bytes, and the status")
		// The storage goes on, and the cache hears of its version first.
		release := store.Hold()
		put(store, poddata.Pod("a/pod-01"))
		read := goList(t.Context(), c, "")
		elapse(1100 * time.Millisecond)
		rv, storage := metric("resource_version"), metric("storage_resource_version")
		assert.EqualValues(t, 102, rv, "where the cache is")
		assert.EqualValues(t, 103, storage, "where the storage is")
		release()
		<-read.done
	}, meters)
}

// The window reaches less far back when events leave it sooner than promised.
func TestMetricsOfAShortWindow(t *testing.T) {
	meters, metric := metered(t)
	inBubble(t, manyPods, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		for range 60 {
			burst(store, 100)
			elapse(time.Second)
		}
		assert.LessOrEqual(t, metric("window_seconds"), float64(40), "how many seconds the window reaches back")
	}, meters, func(c *cacher.Config) { c.WindowBytes = 300 << 10 })
}

// Watchers are shown by state, and the worst and the median with their lag.
func TestMetricsOfSlowWatchers(t *testing.T) {
	meters, metric := metered(t)
	inBubble(t, manyPods, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		slow := watchPods(t, c, "/pods/", "101")
		for range 3 {
			watchPods(t, c, "/pods/", "101", selecting("app=none", ""))
		}
		synctest.Wait()
		watchPods(t, c, "/pods/", "0", streaming)
		burst(store, 50)
		elapse(3 * time.Second)
		expect := func(want map[string]float64) {
			t.Helper()
			for series, want := range want {
				assert.Equal(t, want, metric(series), series)
			}
		}
		expect(map[string]float64{
			`watchers{state="live"}`: 3, `watchers{state="parked"}`: 1, `watchers{state="starting"}`: 1,
			`watcher_lag_events{watcher="worst"}`: 50, `watcher_lag_events{watcher="median"}`: 0,
			`watcher_lag_seconds{watcher="median"}`: 0, "watchers_parked_total": 1, "initial_snapshots": 1,
		})
		s := metric(`watcher_lag_seconds{watcher="worst"}`)
		assert.GreaterOrEqual(t, s, float64(2), "the seconds that the worst watcher lags")
		assert.LessOrEqual(t, s, float64(3), "the seconds that the worst watcher lags")
		assert.NotZero(t, metric(`bytes{part="snapshots"}`), "the initial events keep nothing")
		for range 50 {
			slow.next()
		}
		elapse(2 * time.Second)
		expect(map[string]float64{
			`watchers{state="live"}`: 4, `watchers{state="parked"}`: 0, "watchers_resumed_total": 1,
			`watcher_lag_events{watcher="worst"}`: 50, // of the one that takes no initial events
		})
	}, meters, func(c *cacher.Config) { c.WatchBuffer, c.DispatchBudget = 1, -1 })
}

// When most watchers are slow, so is the median. When none is left, there is no
// lag.
func TestMetricsOfTheMedianWatcher(t *testing.T) {
	meters, metric := metered(t)
	inBubble(t, manyPods, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		var slow []*podWatch
		for range 5 {
			slow = append(slow, watchPods(t, c, "/pods/", "101"))
		}
		synctest.Wait()
		burst(store, 20)
		elapse(2 * time.Second)
		events, age := metric(`watcher_lag_events{watcher="median"}`), metric(`watcher_lag_seconds{watcher="median"}`)
		assert.GreaterOrEqual(t, events, float64(15), "the events that the median watcher lags")
		assert.GreaterOrEqual(t, age, float64(1), "the seconds that the median watcher lags")
		for _, w := range slow {
			w.Stop()
		}
		elapse(2 * time.Second)
		for _, series := range []string{"watcher_lag_events", "watcher_lag_seconds", "watchers"} {
			got := metric(series)
			assert.Zero(t, got, "%s is %v with no watcher", series, got)
		}
	}, meters, func(c *cacher.Config) { c.WatchBuffer, c.DispatchBudget = 1, -1 })
}

// An event is evaluated once for all watchers with one query, and its way is
// measured.
func TestMetricsOfDispatch(t *testing.T) {
	meters, metric := metered(t)
	inBubble(t, manyPods, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		for range 3 {
			watchPods(t, c, "/pods/", "101", selecting("app=web", ""))
		}
		watchPods(t, c, "/pods/", "101", selecting("app=web,kind", ""))
		watchPods(t, c, "/pods/", "101", selecting("app=db", ""))
		synctest.Wait()
		for range 10 {
			put(store, poddata.Pod("a/web", "app=web", "status.phase=Pending"))
		}
		elapse(2 * time.Second)
		for series, want := range map[string]float64{
			"dispatch_candidates_total": 40, "dispatch_evaluations_total": 20, "dispatch_evaluations_saved_total": 20,
			"dispatch_matches_total": 30, "delivered_events_total": 30, "dispatch_lag_seconds": 10,
			`stage_duration_seconds{stage="feed"}`: 1,
		} {
			assert.Equal(t, want, metric(series), series)
		}
		for _, stage := range []string{"queue", "dispatch"} {
			n := metric(`stage_duration_seconds{stage="` + stage + `"}`)
			assert.GreaterOrEqual(t, n, float64(1), "the batches that are measured at %s", stage)
			assert.LessOrEqual(t, n, float64(10), "the batches that are measured at %s", stage)
		}
		for range 30 {
			put(store, poddata.Pod("a/web", "app=web"))
		}
		synctest.Wait()
		n := metric(`stage_duration_seconds{stage="feed"}`)
		assert.EqualValues(t, 3, n, "%v of 40 changes are measured", n)
	}, meters)
}

// A serialization is made for the first watcher, and shared by the others.
func TestMetricsOfEncodings(t *testing.T) {
	for name, test := range map[string]struct {
		bytes        int64
		made, shared float64
	}{"kept": {1 << 20, 2, 6}, "not kept": {-1, 8, 0}} {
		t.Run(name, func(t *testing.T) {
			meters, metric := metered(t)
			store := newStore()
			c := start(t, store, meters, func(c *cacher.Config) { c.EncodingBytes = test.bytes })
			var encoders encoder
			for range 4 {
				w := watchPods(t, c, "/pods/", "1")
				if len(store.Objects()) == 0 {
					put(store, poddata.Pod("a/one"))
				}
				encodeNext(t, w, "json", encoders.encode)
				w = watchPods(t, c, "/pods/", "1")
				encodeNext(t, w, "protobuf", encoders.encode)
			}
			made, shared := metric("encodings_total"), metric("encodings_shared_total")
			assert.Equal(t, test.made, made, "the encodings that were made")
			assert.Equal(t, test.shared, shared, "the encodings that were shared")
		})
	}
}

// Each version request leaves a trace with its outcome, also one that was never
// answered.
func TestMetricsOfVersionRequests(t *testing.T) {
	meters, metric := metered(t)
	onAsking(t, func(t *testing.T, a *asking, c *cacher.Cacher) {
		expect := func(result string, want float64) {
			t.Helper()
			got := metric(`version_request_duration_seconds{result="` + result + `"}`)
			assert.Equal(t, want, got, "%v requests are %s", got, result)
		}
		first := goList(t.Context(), c, "")
		synctest.Wait()
		(<-a.asked).answer()
		<-first.done
		expect("ok", 1)
		n := metric("version_request_reads_total")
		assert.EqualValues(t, 1, n, "%v reads have asked", n)

		failing := goList(t.Context(), c, "")
		synctest.Wait()
		(<-a.asked).reply <- errors.New("no leader")
		<-failing.done
		expect("error", 1)

		reads := []*reading{goList(t.Context(), c, "")}
		synctest.Wait()
		slow := <-a.asked
		for range 9 {
			reads = append(reads, goList(t.Context(), c, ""))
		}
		(<-a.asked).answer() // the one beside the slow one
		for _, r := range reads {
			<-r.done
		}
		synctest.Wait()
		expect("ok", 2)
		expect("superseded", 1)
		expect("unanswered", 0)
		assert.Error(t, slow.ctx.Err(), "the slow request goes on")
		assert.EqualValues(t, 4, metric("version_requests_total"), "the requests that were sent")
		assert.EqualValues(t, 12, metric("version_request_reads_total"), "the reads that they were sent for")

		// A client that is gone says nothing about storage.
		ctx, cancel := context.WithCancel(t.Context())
		gone := goList(ctx, c, "")
		synctest.Wait()
		cancel()
		<-gone.done
		elapse(time.Second)
		expect("abandoned", 1)
		expect("unanswered", 0)

		// However many requests are sent beside a slow one, what reads have waited for
		// in vain counts once.
		for i, read := range []func() *reading{
			func() *reading { return goList(t.Context(), c, "") },
			func() *reading { return goGet(t.Context(), c, "/pods/a/one", "") },
		} {
			sent, abandoned := metric("version_requests_total"), metric(`version_request_duration_seconds{result="abandoned"}`)
			<-read().done
			elapse(time.Second)
			sent = metric("version_requests_total") - sent
			assert.Greater(t, sent, float64(1), "the requests that were sent")
			expect("unanswered", float64(i+1))
			expect("abandoned", abandoned+sent-1)
		}
	}, meters)
}

// Relists are counted by what has led to them.
func TestMetricsOfRelists(t *testing.T) {
	for cause, do := range map[string]func(t *testing.T, store *memstore.Store, c *cacher.Cacher){
		"expired": func(t *testing.T, store *memstore.Store, _ *cacher.Cacher) {
			store.BreakWatches(apierrors.NewResourceExpired("compacted"))
		},
		"change": func(t *testing.T, store *memstore.Store, _ *cacher.Cacher) {
			gone := poddata.Pod("a/none")
			gone.ResourceVersion = "103"
			store.Inject(watch.Event{Type: watch.Deleted, Object: gone})
		},
		"undeliverable": func(t *testing.T, store *memstore.Store, _ *cacher.Cacher) {
			release := store.Corrupt(undecodable)
			put(store, poddata.Pod("a/corrupt"))
			elapse(5 * time.Second)
			release()
		},
		"behind": func(_ *testing.T, store *memstore.Store, _ *cacher.Cacher) {
			store.Fail("watch", noLeader)
			store.BreakWatches(nil)
			elapse(time.Minute)
			for range 100_001 {
				store.Touch()
			}
			put(store, poddata.Pod("a/late"))
			store.Fail("watch", nil)
		},
		"restored": func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
			store.Restore(90)
			<-goList(t.Context(), c, "").done
		},
	} {
		t.Run(cause, func(t *testing.T) {
			meters, metric := metered(t)
			inBubble(t, manyPods, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				elapse(time.Second)
				assert.EqualValues(t, 1, metric(`relists_total{cause="start"}`), "the lists at the start")
				assert.EqualValues(t, 1, metric("relists_total"), "the lists in all")
				do(t, store, c)
				elapse(time.Minute)
				assert.EqualValues(t, 1, metric(`relists_total{cause="`+cause+`"}`), "the lists because of %s", cause)
				assert.EqualValues(t, 2, metric("relists_total"), "the lists in all")
				assert.EqualValues(t, 1, metric("ready"), "the cache is not ready")
			}, meters)
		})
	}
}
