// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// miss makes the cache's watch miss a write.
func miss(store *memstore.Store, write func()) {
	release := store.Hold()
	write()
	store.SkipEvents()
	release()
}

// Regression 51: from the moment that a cache is known to have missed events
// until it was listed again, storage answers consistent reads, all GETs and a
// few LISTs, and those of earlier versions. Watchers receive a 410.
func TestInconsistentCacheIsNotTrusted(t *testing.T) {
	for name, find := range map[string]func(*testing.T, *memstore.Store){
		"by a comparison": func(*testing.T, *memstore.Store) { elapse(90 * time.Second) },
		"by an event that can't be": func(_ *testing.T, store *memstore.Store) {
			put(store, poddata.Pod("a/two", "x=y"))
			elapse(time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				w := watchPods(t, c, "/pods/", "0")
				expectReceived(t, w, "ADDED a/one@2")
				miss(store, func() { put(store, poddata.Pod("a/two")) })
				expectList(t, c, "/pods/", "", "a/one@3") // nobody knows yet
				open := store.Gate("watch")
				find(t, store)
				rv := fmt.Sprint(store.Touch())

				before := store.Requests()
				var gets, lists []*reading
				for range 20 {
					gets, lists = append(gets, goGet(t.Context(), c, "/pods/a/two", "")), append(lists, goList(t.Context(), c, ""))
				}
				refused := 0
				for _, r := range append(gets, lists...) {
					<-r.done
					if code, seconds := retryAfter(r.err); code == http.StatusTooManyRequests && seconds > 0 {
						refused++
					} else {
						assert.NoError(t, r.err)
					}
				}
				now := store.Requests()
				assert.Equal(t, 20, now["get"]-before["get"], "the GETs of 20 that storage got")
				assert.Equal(t, 3, now["list"]-before["list"], "the LISTs of 20 that storage got")
				assert.Equal(t, 17, refused, "the LISTs of 20 that were refused")
				expectList(t, c, "/pods/", "3", "a/one a/two@3", exactly)

				open()
				elapse(10 * time.Second)
				before = store.Requests()
				expectList(t, c, "/pods/", "", "a/one a/two@"+rv)
				expectRead(t, after(goGet(t.Context(), c, "/pods/a/one", "")), "a/one@2")
				now = store.Requests()
				assert.Equal(t, before["list"], now["list"], "the cache is not trusted after it was listed again")
				assert.Equal(t, before["get"], now["get"], "the cache is not trusted after it was listed again")
				expectList(t, c, "/pods/", "3", "a/one a/two@3", exactly)
				assert.Equal(t, before["list"]+1, store.Requests()["list"], "a version from before the list was answered from what had been missed")
				got := received(w)
				require.NotEmpty(t, got, "the watcher was told nothing")
				assert.Equal(t, "ERROR 410 Expired", got[0], "the watcher received %q", got)
			}, func(c *cacher.Config) {
				c.MaxFallbackLists, c.ConsistencyCheckInterval = 3, time.Minute
			})
		})
	}
}

// garbled tells other versions than it has, each time others or always the
// same ones.
type garbled struct {
	*memstore.Store
	mu    sync.Mutex
	calls int
	same  bool
}

func (g *garbled) Versions(ctx context.Context, prefix string, rv uint64, visit func(string, uint64) error) error {
	g.mu.Lock()
	g.calls++
	key := fmt.Sprintf("%sghost/%d", prefix, g.calls)
	if g.same {
		key = prefix + "ghost/one"
	}
	g.mu.Unlock()
	if err := g.KeysAt(ctx, prefix, rv, visit); err != nil {
		return err
	}
	return visit(key, 1)
}

// A check that fails again and again does not make the cache list its storage
// again and again; and one whose difference a list has not mended does not do
// so at all, nor does it turn readers away.
func TestInconsistentForGood(t *testing.T) {
	for _, same := range []bool{false, true} {
		t.Run(fmt.Sprint("the same difference: ", same), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				meters, metric := metered(t)
				g := &garbled{Store: newStore(poddata.Pod("a/one")), same: same}
				c := start(t, g, meters, func(c *cacher.Config) { c.ConsistencyCheckInterval = time.Second })
				defer c.Stop()
				elapse(1000 * time.Second)
				checks, lists := metric(`consistency_checks_total{result="failed"}`), metric("relists_total")
				assert.GreaterOrEqual(t, checks, float64(500), "the checks that have failed")
				assert.GreaterOrEqual(t, lists, float64(2), "how often storage was listed")
				if same {
					assert.LessOrEqual(t, lists, float64(2), "how often storage was listed")
				}
				assert.LessOrEqual(t, lists, float64(1000/8+5), "how often storage was listed")
				assert.Equal(t, lists-1, metric(`relists_total{cause="inconsistent"}`), "the lists that are counted as those of an inconsistent cache")
				if same {
					before := g.Requests()["list"]
					for range 100 {
						expectList(t, c, "/pods/", "", "a/one@2")
					}
					n := g.Requests()["list"]
					assert.Equal(t, before, n, "%d LISTs went to storage", n-before)
					expectList(t, c, "/pods/", "2", "a/one@2", exactly)
					assert.Equal(t, before+1, g.Requests()["list"], "an exact LIST was answered from a cache that differs")
				}
			})
		})
	}
}

// paged notes how its lists are asked for.
type paged struct {
	*memstore.Store
	mu    sync.Mutex
	pages int
	most  int64 // items in one answer
}

func (p *paged) GetList(ctx context.Context, key string, opts storage.ListOptions, into runtime.Object) error {
	err := p.Store.GetList(ctx, key, opts, into)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pages++
	p.most = max(p.most, int64(len(into.(*example.PodList).Items)))
	return err
}

// Regressions 52 and 53: a collection of many pages is compared page by page, at
// one version whatever is written meanwhile, and one page is in memory at a
// time.
func TestConsistencyCheckOfManyPages(t *testing.T) {
	const objects = 3_333
	for _, missed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			meters, metric := metered(t)
			store := &paged{Store: newStore()}
			for i := range objects {
				put(store.Store, poddata.Pod(fmt.Sprintf("a/p%05d", i)))
			}
			c := start(t, store, meters, func(c *cacher.Config) { c.ConsistencyCheckInterval = time.Minute })
			defer c.Stop()
			if missed {
				miss(store.Store, func() { store.Remove("/pods/a/p03000") })
			}
			expectFresh(t, c)
			elapse(90 * time.Second)
			synctest.Wait()
			want := map[bool]string{false: "passed", true: "failed"}[missed]
			assert.EqualValues(t, 1, metric(fmt.Sprintf(`consistency_checks_total{result=%q}`, want)), "the checks that have %s", want)
			store.mu.Lock()
			defer store.mu.Unlock()
			assert.GreaterOrEqual(t, store.pages, objects/500, "the pages that were read")
			assert.LessOrEqual(t, store.most, int64(500), "the objects of a page")
		})
	}
}

// Regression 87, for reads: while an object can't be read, and the cache stands
// still before it, the others are: every GET, and LISTs of any version.
func TestReadsBesideAnUnreadableObject(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one"), poddata.Pod("a/two")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		release := store.Corrupt(apierrors.NewInternalError(errors.New("no key to decrypt it with")))
		put(store, poddata.Pod("a/bad"))
		put(store, poddata.Pod("a/two"))
		elapse(time.Minute)
		var reads []*reading
		for range 100 {
			reads = append(reads, goGet(t.Context(), c, "/pods/a/one", ""), goGet(t.Context(), c, "/pods/a/one", "0"))
		}
		for _, r := range reads {
			expectRead(t, after(r), "a/one@2")
		}
		for range 100 {
			expectRead(t, after(goGet(t.Context(), c, "/pods/a/two", "")), "a/two@5")
		}
		expectList(t, c, "/pods/", "0", "a/one a/two@3")
		release()
		elapse(time.Minute)
		expectList(t, c, "/pods/", "", "a/bad a/one a/two@5")
	})
}

// lostGets loses some GETs.
type lostGets struct {
	*memstore.Store
	mu   sync.Mutex
	lose int
}

func (l *lostGets) Get(ctx context.Context, key string, opts storage.GetOptions, into runtime.Object) error {
	l.mu.Lock()
	l.lose--
	lost := l.lose >= 0
	l.mu.Unlock()
	if lost {
		<-ctx.Done()
		return ctx.Err()
	}
	return l.Store.Get(ctx, key, opts, into)
}

// A GET that the cache passes on is not lost with one request.
func TestGetPassedOnIsNotLost(t *testing.T) {
	for _, tc := range []struct {
		lost   int
		within time.Duration
		key    string
	}{{0, 0, "a/two"}, {1, 100 * time.Millisecond, "a/two"}, {2, 300 * time.Millisecond, "a/two"}, {1, 100 * time.Millisecond, "a/none"}} {
		synctest.Test(t, func(t *testing.T) {
			store := &lostGets{Store: newStore(poddata.Pod("a/one")), lose: tc.lost}
			c := start(t, store)
			defer c.Stop()
			store.Hold()
			put(store.Store, poddata.Pod("a/two"))
			store.Fail("keyversions", errors.New("no leader"))
			began := time.Now()
			r := after(goGet(t.Context(), c, "/pods/"+tc.key, ""))
			if tc.key == "a/none" {
				assert.True(t, storage.IsNotFound(r.err), "got %q %v", r.got, r.err)
			} else {
				expectRead(t, r, "a/two@3")
			}
			assert.Equal(t, tc.within, time.Since(began), "the time that it took")
		})
	}
	synctest.Test(t, func(t *testing.T) {
		store := &lostGets{Store: newStore(poddata.Pod("a/one")), lose: 1000}
		c := start(t, store)
		store.Fail("keyversions", errors.New("no leader"))
		ctx, cancel := context.WithCancel(t.Context())
		cancelled, stopped := goGet(ctx, c, "/pods/a/one", ""), goGet(t.Context(), c, "/pods/a/one", "")
		elapse(time.Second)
		cancel()
		synctest.Wait()
		assert.False(t, cancelled.under(), "the read goes on")
		assert.ErrorIs(t, cancelled.err, context.Canceled)
		n := store.lose
		assert.Equal(t, 1000-6, n, "%d requests were sent for two GETs", 1000-n)
		c.Stop()
		<-stopped.done
		assert.True(t, apierrors.IsTooManyRequests(stopped.err), "got %v", stopped.err)
	})
}

// Regression 129: a watcher whose channel is full when the cache finds that it has missed
// an event receives its 410 once there is room. Without it the client would resume from
// the list that has mended the state, and never see the object.
func TestAFullWatcherReceivesThatEventsWereMissed(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		full, left := watchPods(t, c, "/pods/", "2"), watchPods(t, c, "/pods/", "2")
		put(store, poddata.Pod("a/two"))
		put(store, poddata.Pod("a/three"))
		elapse(time.Second)
		miss(store, func() { put(store, poddata.Pod("a/four")) })
		expectList(t, c, "/pods/b/", "", "@5") // has the cache take the missed version for reached
		elapse(2 * time.Minute)
		assert.Zero(t, c.Status().Watches.Live)
		left.Stop()
		expectReceived(t, left, "ADDED a/two@3", "ADDED a/three@4", "closed")
		expectReceived(t, full, "ADDED a/two@3", "ADDED a/three@4", "ERROR 410 Expired")
		elapse(time.Second)
		expectReceived(t, full, "closed")
	}, func(c *cacher.Config) { c.ConsistencyCheckInterval, c.WatchBuffer = time.Minute, 2 })
}
