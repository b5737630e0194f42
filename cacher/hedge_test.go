// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/apis/example"
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
		f(t, a, c)
		c.Stop()
	})
}

// Regression 86: a version request that is never answered holds up nobody. The
// next one is sent beside it, and answers its readers, too.
func TestLostVersionRequestHoldsUpNobody(t *testing.T) {
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
		waited := time.Since(began)
		assert.LessOrEqual(t, waited, 100*time.Millisecond, "the reads were held up for %v", waited)
		assert.Error(t, lost.ctx.Err(), "the lost request goes on, for nobody")
		n := len(a.asked)
		assert.Zero(t, n, "%d requests more were sent", n)
	})
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
		waited := time.Since(began)
		assert.Equal(t, cacher.DefaultFreshnessTimeout/6, waited, "the GET waited %v", waited)
		<-list.done
		expectRead(t, list, "a/one@2") // by storage, in one of the places for a LIST
		waited = time.Since(began)
		assert.Equal(t, cacher.DefaultFreshnessTimeout, waited, "the LIST waited %v", waited)
		n := a.mostUnderWay()
		assert.GreaterOrEqual(t, n, 3, "requests that were under way at one time")
		assert.LessOrEqual(t, n, 4, "requests that were under way at one time")
		n = len(a.asked)
		assert.GreaterOrEqual(t, n, 5, "requests that were sent in %v", time.Since(began))
		assert.LessOrEqual(t, n, 25, "requests that were sent in %v", time.Since(began))
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

// A storage that answers nothing faster than in a second is not asked so often
// that it never answers.
func TestSlowStorageAnswers(t *testing.T) {
	onAsking(t, func(t *testing.T, a *asking, c *cacher.Cacher) {
		go func() {
			for q := range a.asked {
				time.AfterFunc(time.Second, q.answer)
			}
		}()
		defer close(a.asked)
		for range 5 {
			began := time.Now()
			r := after(goList(t.Context(), c, ""))
			expectRead(t, r, "a/one@2")
			waited := time.Since(began)
			assert.Equal(t, time.Second, waited, "a LIST waited %v", waited)
		}
		n := a.store.Requests()["list"]
		assert.LessOrEqual(t, n, 1, "storage got %d lists", n)
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
		waited := time.Since(began)
		assert.Zero(t, waited, "the reads waited %v", waited)
		got := a.store.Requests()
		assert.Equal(t, 1, got["list"], "lists that storage got")
		assert.Equal(t, 1, got["get"], "GETs that storage got")

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
		n := a.store.Requests()["list"]
		assert.Equal(t, 2, n, "storage got %d lists", n)
	}, func(c *cacher.Config) { c.MaxFallbackLists = 2 })
}

// Readers that give up, and Stop, end what was asked for them.
func TestVersionRequestsEndWithTheirReaders(t *testing.T) {
	onAsking(t, func(t *testing.T, a *asking, c *cacher.Cacher) {
		ctx, cancel := context.WithCancel(t.Context())
		reads := []*reading{goList(ctx, c, ""), goGet(ctx, c, "/pods/a/one", "")}
		synctest.Wait()
		first := <-a.asked
		cancel()
		synctest.Wait()
		for _, r := range reads {
			assert.False(t, r.under(), "the read goes on")
			assert.ErrorIs(t, r.err, context.Canceled)
		}
		elapse(time.Second)
		n := len(a.asked)
		assert.Zero(t, n, "requests were sent for nobody")
		assert.Error(t, first.ctx.Err(), "the first request goes on")

		list := goList(t.Context(), c, "")
		elapse(time.Second)
		c.Stop()
		<-list.done
		assert.Error(t, list.err, "a read of a stopped cache got %q", list.got)
		n = a.mostUnderWay()
		assert.LessOrEqual(t, n, 4, "%d requests were under way", n)
	})
}

// stubborn answers version requests when it is told to, whatever becomes of
// their context.
type stubborn struct {
	withoutKeys
	store  *memstore.Store
	answer chan struct{}
}

func (s stubborn) GetCurrentResourceVersion(context.Context) (uint64, error) {
	rv, err := s.store.GetCurrentResourceVersion(context.Background())
	<-s.answer
	return rv, err
}

// Stop awaits a storage that answers late, and the answer does no harm. Reads
// that arrive while requests don't end are not left without an answer.
func TestStorageAnswersAfterStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(poddata.Pod("a/one"))
		s := stubborn{withoutKeys{store}, store, make(chan struct{})}
		c := start(t, s, func(c *cacher.Config) { c.DisableSizeEstimation, c.ConsistencyCheckInterval = true, -1 })
		first := goGet(t.Context(), c, "/pods/a/one", "")
		elapse(10 * time.Second)
		expectRead(t, first, "a/one@2")
		second := goGet(t.Context(), c, "/pods/a/one", "")
		elapse(10 * time.Second)
		expectRead(t, second, "a/one@2")
		n := store.Requests()["version"]
		assert.LessOrEqual(t, n, 4, "%d requests are under way", n)
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

// A consistent read sees everything that was written before it, even if answers
// are lost, late, out of order or errors.
func TestConsistentReadsUnderFaults(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			onAsking(t, func(t *testing.T, a *asking, c *cacher.Cacher) {
				readUnderFaults(t, rand.New(rand.NewPCG(seed, 0)), a, c)
			})
		})
	}
}

func readUnderFaults(t *testing.T, random *rand.Rand, a *asking, c *cacher.Cacher) {
	answered := make(chan struct{})
	fates := rand.New(rand.NewPCG(random.Uint64(), 0))
	go func() {
		defer close(answered)
		for q := range a.asked {
			switch fate := fates.IntN(10); {
			case fate < 3: // lost
			case fate == 3:
				q.reply <- errors.New("no leader")
			default:
				time.AfterFunc(time.Duration(fates.IntN(120))*time.Millisecond, q.answer)
			}
		}
	}()
	var readers sync.WaitGroup
	for range 300 {
		elapse(time.Duration(random.IntN(30)) * time.Millisecond)
		if random.IntN(2) == 0 {
			put(a.store, poddata.Pod("a/one"))
		}
		written, err := a.store.GetCurrentResourceVersion(t.Context())
		require.NoError(t, err)
		readers.Go(func() {
			pods := &example.PodList{}
			if err := c.GetList(t.Context(), "/pods/", everything(""), pods); err != nil {
				return // no place: told to retry
			}
			var rv uint64
			_, err := fmt.Sscan(pods.ResourceVersion, &rv)
			require.NoError(t, err, "a read sees %q, %d was written before it", pods.ResourceVersion, written)
			assert.GreaterOrEqual(t, rv, written, "a read sees less than was written before it")
		})
	}
	readers.Wait()
	n := a.mostUnderWay()
	assert.LessOrEqual(t, n, 4, "%d requests were under way", n)
	c.Stop()
	close(a.asked)
	<-answered
}
