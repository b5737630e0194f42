// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// asking hands the version requests of a cache to the test, which answers them
// in the order that it likes. An asking can't tell the versions of keys.
type asking struct {
	storage.Interface
	store *memstore.Store
	holds atomic.Bool // the test answers; before that, the store does
	asked chan *question

	mu       sync.Mutex
	underWay int
	most     int // under way at one time
}

// question is one version request.
type question struct {
	ctx context.Context
	rv  uint64 // storage's when it was asked
	// reply is what the test answers with: nil for the version.
	reply chan error
}

func newAsking(store *memstore.Store) *asking {
	return &asking{Interface: withoutKeys{store}, store: store, asked: make(chan *question, 10_000)}
}

// withoutKeys is a store that can't tell the versions of keys.
type withoutKeys struct{ storage.Interface }

func (withoutKeys) WatchProgress() bool { return true }

// WatchProgress tells a cache that progress requests are answered.
func (a *asking) WatchProgress() bool { return true }

func (a *asking) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	rv, err := a.store.GetCurrentResourceVersion(ctx)
	if err != nil {
		return 0, err
	}
	if !a.holds.Load() {
		return rv, nil
	}
	q := &question{ctx: ctx, rv: rv, reply: make(chan error, 1)}
	a.mu.Lock()
	a.underWay++
	a.most = max(a.most, a.underWay)
	a.mu.Unlock()
	a.asked <- q
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.underWay--
	}()
	select {
	case err := <-q.reply:
		return rv, err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (a *asking) mostUnderWay() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.most
}

func (q *question) answer() { q.reply <- nil }

// onAsking runs a test in a bubble with a cache whose version requests the
// test answers.
func onAsking(t *testing.T, f func(*testing.T, *asking, *cacher.Cacher), change ...func(*cacher.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(newStore(poddata.Pod("a/one")))
		c := start(t, a, append(change, func(c *cacher.Config) {
			c.DisableSizeEstimation, c.ConsistencyCheckInterval = true, -1
		})...)
		a.holds.Store(true)
		f(t, a, c)
		c.Stop()
	})
}

// Regression 86: a version request that is never answered holds up nobody. The
// next one is sent beside it, and answers its readers, too.
func TestLostVersionRequestHoldsUpNobody(t *testing.T) {
	meters, metric := metered(t)
	onAsking(t, func(t *testing.T, a *asking, c *cacher.Cacher) {
		began := time.Now()
		reads := []*reading{goList(t.Context(), c, ""), goGet(t.Context(), c, "/pods/a/one", "")}
		synctest.Wait()
		lost := <-a.asked
		for range 62 {
			reads = append(reads, goList(t.Context(), c, ""))
		}
		second := <-a.asked
		second.answer()
		synctest.Wait()
		for _, r := range reads {
			expectRead(t, r, "a/one@2")
			require.False(t, r.under())
		}
		assert.LessOrEqual(t, time.Since(began), 100*time.Millisecond, "how long the reads were held up")
		assert.Error(t, lost.ctx.Err(), "the lost request goes on, for nobody")
		assert.Empty(t, a.asked, "more requests were sent")
		for result, want := range map[string]float64{"ok": 1, "superseded": 1, "unanswered": 0} {
			assert.Equal(t, want, metric(`version_request_duration_seconds{result="`+result+`"}`), "requests that are %s", result)
		}
		assert.EqualValues(t, len(reads), metric("version_request_reads_total"), "the reads that have asked")

		// A client that is gone says nothing about storage. What reads have waited for in
		// vain counts once, however many requests are sent beside a slow one.
		ctx, cancel := context.WithCancel(t.Context())
		gone := goList(ctx, c, "")
		synctest.Wait()
		cancel()
		<-gone.done
		elapse(time.Second)
		assert.EqualValues(t, 1, metric(`version_request_duration_seconds{result="abandoned"}`))
		<-goList(t.Context(), c, "").done
		elapse(time.Second)
		assert.EqualValues(t, 1, metric(`version_request_duration_seconds{result="unanswered"}`))
	}, meters)
}

// A read uses no answer that was asked for before it arrived, in whatever order
// the answers come.
func TestVersionAnswersOutOfOrder(t *testing.T) {
	for _, newestFirst := range []bool{false, true} {
		t.Run(fmt.Sprint("the newest first: ", newestFirst), func(t *testing.T) {
			onAsking(t, func(t *testing.T, a *asking, c *cacher.Cacher) {
				early := goList(t.Context(), c, "")
				synctest.Wait()
				first := <-a.asked
				release := a.store.Hold()
				put(a.store, poddata.Pod("a/two"))
				late := goList(t.Context(), c, "")
				second := <-a.asked
				require.EqualValues(t, 2, first.rv, "where the first request was answered")
				require.EqualValues(t, 3, second.rv, "where the second request was answered")
				if newestFirst {
					second.answer()
					synctest.Wait()
					first.answer() // which nobody waits for
					synctest.Wait()
					require.True(t, early.under(), "the early read ended below the version that it was told: %+v", early)
					require.True(t, late.under(), "the late read ended below the version that it was told: %+v", late)
				} else {
					first.answer()
					synctest.Wait()
					expectRead(t, early, "a/one@2")
					require.True(t, late.under(), "a read used an answer from before it arrived: %+v", late)
					second.answer()
					synctest.Wait()
				}
				release()
				synctest.Wait()
				expectRead(t, late, "a/one a/two@3")
				if newestFirst {
					expectRead(t, early, "a/one a/two@3")
				}
			})
		})
	}
}

// When nothing is answered, a few requests are under way, one of them always a
// young one; reads end in time, and what storage answers at last counts.
func TestVersionRequestsUnderWayAreBounded(t *testing.T) {
	onAsking(t, func(t *testing.T, a *asking, c *cacher.Cacher) {
		began := time.Now()
		get := goGet(t.Context(), c, "/pods/a/one", "")
		list := goList(t.Context(), c, "")
		<-get.done
		expectRead(t, get, "a/one@2") // by storage
		assert.Equal(t, cacher.DefaultFreshnessTimeout/6, time.Since(began), "how long the GET has waited")
		<-list.done
		expectRead(t, list, "a/one@2") // by storage, in one of the places for a LIST
		assert.Equal(t, cacher.DefaultFreshnessTimeout, time.Since(began), "how long the LIST has waited")
		assert.Contains(t, []int{3, 4}, a.mostUnderWay(), "requests that were under way at one time")
		assert.InDelta(t, 15, len(a.asked), 10, "requests that were sent in %v", time.Since(began))
		elapse(time.Minute)
		before := len(a.asked)
		elapse(time.Minute + 10*time.Second)
		// The cache asks by itself, one request at a time, while storage does not answer.
		assert.LessOrEqual(t, len(a.asked)-before, 50, "requests that were sent for nobody")
		goOn := 0
		for len(a.asked) > 0 {
			if q := <-a.asked; q.ctx.Err() == nil {
				goOn++
			}
		}
		assert.LessOrEqual(t, goOn, 1, "%d requests go on, for nobody", goOn)
	})
}

// answerAfter answers each version request after a time, until the test ends.
func (a *asking) answerAfter(d time.Duration) (end func()) {
	go func() {
		for q := range a.asked {
			time.AfterFunc(d, q.answer)
		}
	}()
	return func() { close(a.asked) }
}

// A storage that answers nothing faster than in a second is not asked so often
// that it never answers.
func TestSlowStorageAnswers(t *testing.T) {
	onAsking(t, func(t *testing.T, a *asking, c *cacher.Cacher) {
		defer a.answerAfter(time.Second)()
		for range 5 {
			began := time.Now()
			expectRead(t, after(goList(t.Context(), c, "")), "a/one@2")
			assert.Equal(t, time.Second, time.Since(began), "how long a LIST has waited")
		}
		assert.LessOrEqual(t, a.store.Requests()["list"], 1, "lists of storage")
		c.Stop()
	})
}

// REGRESSIONS 157: a storage that is slow to answer anything is no reason to open
// another watch.
func TestWatchIsKeptWhileStorageIsSlow(t *testing.T) {
	onAsking(t, func(t *testing.T, a *asking, c *cacher.Cacher) {
		defer a.answerAfter(300 * time.Millisecond)()
		watches := a.store.Requests()["watch"]
		for range 60 {
			release := a.store.Hold()
			a.store.Touch()
			r := goList(t.Context(), c, "")
			elapse(2 * time.Second)
			release()
			elapse(2 * time.Second)
			require.False(t, r.under())
			require.NoError(t, r.err)
		}
		assert.Equal(t, watches, a.store.Requests()["watch"], "no other watch is opened")
		c.Stop()
	})
}

// A storage that fails fast fails its readers fast, and one failure does not
// fail readers whom another request can still answer.
func TestFailedVersionRequests(t *testing.T) {
	failure := errors.New("no leader")
	onAsking(t, func(t *testing.T, a *asking, c *cacher.Cacher) {
		began := time.Now()
		for _, read := range []func() *reading{
			func() *reading { return goList(t.Context(), c, "") },
			func() *reading { return goGet(t.Context(), c, "/pods/a/one", "") },
		} {
			r := read()
			(<-a.asked).reply <- failure
			expectRead(t, after(r), "a/one@2") // by storage
		}
		assert.Zero(t, time.Since(began), "how long the reads have waited")
		assert.Equal(t, 2, a.store.Requests()["list"], "lists that storage got, with the one at the start")
		assert.Equal(t, 1, a.store.Requests()["get"], "GETs that storage got")

		early := goList(t.Context(), c, "")
		synctest.Wait()
		first := <-a.asked
		late := goList(t.Context(), c, "")
		(<-a.asked).reply <- failure
		<-late.done // nothing that is under way could answer it
		require.True(t, early.under(), "a read was failed that a request under way can answer: %+v", early)
		first.answer()
		<-early.done
		expectRead(t, early, "a/one@2")

		early = goList(t.Context(), c, "")
		synctest.Wait()
		first = <-a.asked
		second := <-a.asked
		first.reply <- failure
		synctest.Wait()
		require.True(t, early.under(), "a read was failed that a later request can answer: %+v", early)
		second.answer()
		<-early.done
		expectRead(t, early, "a/one@2")
		assert.Equal(t, 3, a.store.Requests()["list"], "lists that storage got, with the one at the start")
	}, func(c *cacher.Config) { c.MaxFallbackLists = 2 })
}

// stubborn answers version requests when it is told to, whatever becomes of
// their context.
type stubborn struct {
	withoutKeys
	store  *memstore.Store
	holds  *atomic.Bool
	answer chan struct{}
}

func (s stubborn) GetCurrentResourceVersion(context.Context) (uint64, error) {
	rv, err := s.store.GetCurrentResourceVersion(context.Background())
	if s.holds.Load() {
		<-s.answer
	}
	return rv, err
}

// Stop awaits a storage that answers late, and the answer does no harm. Reads
// that arrive while requests don't end are not left without an answer.
func TestStorageAnswersAfterStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(poddata.Pod("a/one"))
		s := stubborn{withoutKeys{store}, store, &atomic.Bool{}, make(chan struct{})}
		c := start(t, s, func(c *cacher.Config) { c.DisableSizeEstimation, c.ConsistencyCheckInterval = true, -1 })
		s.holds.Store(true)
		before := store.Requests()["version"]
		first := goGet(t.Context(), c, "/pods/a/one", "")
		elapse(10 * time.Second)
		expectRead(t, first, "a/one@2")
		second := goGet(t.Context(), c, "/pods/a/one", "")
		elapse(10 * time.Second)
		expectRead(t, second, "a/one@2")
		assert.LessOrEqual(t, store.Requests()["version"]-before, 4, "requests under way")
		list := goList(t.Context(), c, "")
		synctest.Wait()
		stopped := make(chan struct{})
		go func() { c.Stop(); close(stopped) }()
		synctest.Wait()
		assert.False(t, list.under(), "a read of a stopped cache goes on")
		assert.Error(t, list.err, "a read of a stopped cache got %q", list.got)
		select {
		case <-stopped:
			assert.Fail(t, "Stop did not await the requests")
		default:
		}
		close(s.answer)
		<-stopped
	})
}
