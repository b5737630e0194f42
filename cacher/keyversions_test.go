// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
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

// Regression 97: a GET of an object that nobody has written does not wait for
// what becomes of others, and needs no progress report.
func TestGetOfAQuietResource(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		defer store.Hold()()
		began := time.Now()
		for range 20 {
			store.Touch()
			put(store, poddata.Pod("b/busy"))
			expectRead(t, after(goGet(t.Context(), c, "/pods/a/one", "")), "a/one@2")
			r := after(goGet(t.Context(), c, "/pods/a/none", ""))
			assert.True(t, storage.IsNotFound(r.err), "got %q, %v", r.got, r.err)
		}
		waited := time.Since(began)
		assert.Zero(t, waited, "the GETs waited %v", waited)
		requests := store.Requests()
		assert.Zero(t, requests["get"], "GETs that storage got")
		assert.Zero(t, requests["progress"], "requests for progress that storage got")
		assert.Zero(t, requests["version"], "requests for its version that storage got")
	})
}

// A GET waits for the last write of its object, whatever that was, and for
// nothing else.
func TestGetWaitsForItsObject(t *testing.T) {
	const key = "/pods/a/one"
	for name, tc := range map[string]struct {
		write func(*memstore.Store)
		want  string // "": there is none
	}{
		"changed":              {func(s *memstore.Store) { put(s, poddata.Pod("a/one")) }, "a/one@3"},
		"deleted":              {func(s *memstore.Store) { s.Remove(key) }, ""},
		"deleted and created":  {func(s *memstore.Store) { s.Remove(key); put(s, poddata.Pod("a/one")) }, "a/one@4"},
		"changed and deleted":  {func(s *memstore.Store) { put(s, poddata.Pod("a/one")); s.Remove(key) }, ""},
		"created, after a gap": {func(s *memstore.Store) { s.Remove(key); s.Touch(); s.Touch(); put(s, poddata.Pod("a/one")) }, "a/one@6"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				release := store.Hold()
				tc.write(store)
				r := goGet(t.Context(), c, key, "")
				elapse(100 * time.Millisecond)
				require.True(t, r.under(), "the GET has not waited: %+v", r)
				release()
				elapse(100 * time.Millisecond)
				if tc.want != "" {
					expectRead(t, r, tc.want)
				} else if assert.False(t, r.under(), "the GET goes on") {
					assert.True(t, storage.IsNotFound(r.err), "got %q %v, want that there is none", r.got, r.err)
				}
				n := store.Requests()["get"]
				assert.Zero(t, n, "storage was read %d times", n)
			})
		})
	}
}

// keysAsked notes what the storage is asked the versions of.
type keysAsked struct {
	*memstore.Store
	mu   sync.Mutex
	keys [][]string
}

func (a *keysAsked) KeyVersions(ctx context.Context, keys []string) ([]uint64, uint64, error) {
	a.mu.Lock()
	a.keys = append(a.keys, append([]string(nil), keys...))
	a.mu.Unlock()
	return a.Store.KeyVersions(ctx, keys)
}

// GETs at once share their requests, of the same object or not, and each asks
// for a key once. Requests stay small.
func TestGetsShareTheirRequests(t *testing.T) {
	for _, tc := range []struct{ objects, gets, most int }{{1, 64, 1}, {64, 64, 64}, {7, 64, 7}, {10_000, 10_000, 100}} {
		t.Run(fmt.Sprint(tc.gets, " GETs of ", tc.objects), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newStore()
				for i := range tc.objects {
					put(store, poddata.Pod(fmt.Sprintf("a/p%d", i)))
				}
				a := &keysAsked{Store: store}
				c := start(t, a)
				defer c.Stop()
				store.Touch() // a version that the cache does not know of
				open := store.Gate("keyversions")
				var reads []*reading
				for i := range tc.gets {
					reads = append(reads, goGet(t.Context(), c, fmt.Sprintf("/pods/a/p%d", i%tc.objects), ""))
					if i == 0 {
						synctest.Wait()
					}
				}
				synctest.Wait()
				open()
				for i, r := range reads {
					expectRead(t, after(r), fmt.Sprintf("a/p%d@%d", i%tc.objects, i%tc.objects+2))
				}
				n := store.Requests()["get"] + store.Requests()["version"]
				assert.Zero(t, n, "storage was asked %d times more", n)
				require.Len(t, a.keys, 2, "the requests that were sent")
				require.Len(t, a.keys[0], 1, "the keys of the first request")
				assert.Contains(t, []int{min(tc.most, tc.gets-1), tc.most - 1}, len(a.keys[1]), "the keys of the second request")
			})
		})
	}
}

// The answer to a GET of an object that does not exist, or of a malformed key,
// does not depend on where it comes from.
func TestGetOfOddKeys(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		for _, key := range []string{
			"/pods/a/one", "/pods/a/none", "/pods/a/", "/pods/a", "/pods//a/one", "/pods/a//one", "/pods/a/one/", "/pods/", "/pods",
			"/nodes/a", "", "/", "/pods/../nodes", "/pods/a/.", "/pods/a/" + strings.Repeat("x", 5000),
		} {
			for _, ignore := range []bool{false, true} {
				before := store.Requests()
				got, want := poddata.Pod("what/was"), poddata.Pod("what/was")
				opts := storage.GetOptions{IgnoreNotFound: ignore}
				err := c.Get(t.Context(), key, opts, got)
				between := store.Requests()
				stored := store.Get(t.Context(), key, opts, want)
				assert.Equal(t, errorClass(stored), errorClass(err), "%.30q: got %v, storage says %v", key, err, stored)
				assert.Equal(t, want.Name, got.Name, "%.30q", key)
				assert.Equal(t, want.ResourceVersion, got.ResourceVersion, "%.30q", key)
				assert.Equal(t, before["get"], between["get"], "%.30q: storage was read", key)
			}
		}
	})
}

// lying tells versions as the test has it.
type lying struct {
	*memstore.Store
	lie atomic.Pointer[func(versions []uint64, current uint64) ([]uint64, uint64, error)]
}

func (l *lying) KeyVersions(ctx context.Context, keys []string) ([]uint64, uint64, error) {
	versions, current, err := l.Store.KeyVersions(ctx, keys)
	if lie := l.lie.Load(); lie != nil && err == nil {
		return (*lie)(versions, current)
	}
	return versions, current, err
}

// An answer that can't be, or none at all, makes a GET one of storage's. If the
// cache can't have what it has it is compared with storage, once; it passes, and
// is trusted again.
func TestGetWhereVersionsAreOdd(t *testing.T) {
	type versions = []uint64
	for name, tc := range map[string]struct {
		lie     func(versions, uint64) (versions, uint64, error)
		suspect bool
	}{
		"too few":           {func(versions, uint64) (versions, uint64, error) { return nil, 99, nil }, false},
		"too many":          {func(v versions, c uint64) (versions, uint64, error) { return append(v, 7), c, nil }, false},
		"an error":          {func(versions, uint64) (versions, uint64, error) { return nil, 0, errors.New("no leader") }, false},
		"below the cache's": {func(_ versions, c uint64) (versions, uint64, error) { return versions{2}, c, nil }, true},
		"gone":              {func(_ versions, c uint64) (versions, uint64, error) { return versions{0}, c, nil }, true},
		"to come":           {func(_ versions, c uint64) (versions, uint64, error) { return versions{c + 9}, c + 9, nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				meters, metric := metered(t)
				store := &lying{Store: newStore(poddata.Pod("a/zero"), poddata.Pod("a/one"))}
				c := start(t, store, meters)
				defer c.Stop()
				store.lie.Store(&tc.lie)
				for round := 1; round <= 5; round++ {
					expectRead(t, after(goGet(t.Context(), c, "/pods/a/one", "")), "a/one@3")
					assert.Equal(t, round, store.Requests()["get"], "how often storage was read")
					synctest.Wait()
				}
				checks := metric(`consistency_checks_total{result="passed"}`)
				assert.Equal(t, map[bool]float64{true: 1}[tc.suspect], checks, "%v comparisons were made", checks)
				lists := store.Requests()["list"]
				expectList(t, c, "/pods/", "", "a/one a/zero@3")
				assert.Equal(t, lists, store.Requests()["list"], "the cache is not trusted")
				n := metric("relists_total")
				assert.EqualValues(t, 1, n, "storage was listed %v times", n)
			})
		})
	}
}

// A storage that was restored from a backup and has gone on, beyond where the
// cache is, is found out by the first GET of an object that differs.
func TestGetFindsARestoredBackup(t *testing.T) {
	for _, interval := range []time.Duration{0, -1} {
		inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
			for range 5 {
				put(store, poddata.Pod("a/one")) // up to 7
			}
			expectList(t, c, "/pods/", "", "a/one@7")
			openWatch := store.Gate("watch")
			store.Restore(2)
			for range 20 {
				put(store, poddata.Pod("b/other"))
			}
			expectRead(t, after(goGet(t.Context(), c, "/pods/a/one", "")), "a/one@2")
			openWatch()
			elapse(time.Minute)
			expectList(t, c, "/pods/", "0", "a/one b/other@22")
			before := store.Requests()["get"]
			expectRead(t, after(goGet(t.Context(), c, "/pods/a/one", "")), "a/one@2")
			assert.Equal(t, before, store.Requests()["get"], "the cache is not trusted after a list")
		}, func(c *cacher.Config) { c.ConsistencyCheckInterval = interval })
	}
}

// The version that a storage has told is forgotten once it was listed after it had
// gone back.
func TestToldVersionGoesBackWithTheStorage(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		for range 5 {
			put(store, poddata.Pod("a/one")) // up to 7
		}
		expectList(t, c, "/pods/", "", "a/one@7")
		require.EqualValues(t, 7, c.Status().StorageResourceVersion)
		store.Restore(2)
		store.BreakWatches(nil)
		elapse(5 * time.Minute)
		s := c.Status()
		require.EqualValues(t, 2, s.ResourceVersion)
		require.EqualValues(t, 2, s.StorageResourceVersion, "the storage's version")
	})
}

// Two keys of one name: a cache can't be made to agree with storage, GETs are
// answered as storage has it, and storage is not listed over and over.
func TestGetOfTwoKeysOfOneName(t *testing.T) {
	for _, interval := range []time.Duration{0, -1} {
		synctest.Test(t, func(t *testing.T) {
			meters, metric := metered(t)
			store := newStore(poddata.Pod("a/one"), poddata.Pod("a/two"))
			store.Put("/pods/a/twin", poddata.Pod("a/one", "twin=yes"))
			c := start(t, unstreamed{store}, meters, func(c *cacher.Config) { c.ConsistencyCheckInterval = interval })
			defer c.Stop()
			for range 1000 {
				elapse(time.Second)
				expectRead(t, after(goGet(t.Context(), c, "/pods/a/one", "")), "a/one@2")
				expectRead(t, after(goGet(t.Context(), c, "/pods/a/two", "")), "a/two@3")
				expectRead(t, after(goList(t.Context(), c, "0")), "a/one a/two@4")
			}
			n := metric("relists_total")
			assert.LessOrEqual(t, n, float64(9), "storage was listed %v times", n)
			t.Logf("storage was listed %v times in 1000 s", metric("relists_total"))
		})
	}
}

// versionsOf is what a key was at each version.
type versionsOf struct {
	mu   sync.Mutex
	from []string // by resourceVersion; "" where there was nothing
}

func (h *versionsOf) add(rv uint64, what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for uint64(len(h.from)) < rv {
		h.from = append(h.from, h.last())
	}
	h.from = append(h.from, what)
}

func (h *versionsOf) last() string {
	if len(h.from) == 0 {
		return ""
	}
	return h.from[len(h.from)-1]
}

func (h *versionsOf) now() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.from) - 1
}

// between tells whether what was there at a version from since on.
func (h *versionsOf) between(since int, what string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, was := range h.from[since:] {
		if was == what {
			return true
		}
	}
	return false
}

// A GET is linearizable, whatever is written meanwhile, and however late and in
// what batches the cache hears of it: it returns what was there at some time
// between its call and its return.
func TestGetsAreLinearizable(t *testing.T) {
	for seed := range uint64(20) {
		inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
			linearizable(t, rand.New(rand.NewPCG(seed, 1)), store, c)
		})
		require.False(t, t.Failed(), "with seed %d", seed)
	}
}

func linearizable(t *testing.T, random *rand.Rand, store *memstore.Store, c *cacher.Cacher) {
	const key = "/pods/a/one"
	h := &versionsOf{}
	h.add(1, "")
	var readers sync.WaitGroup
	var mu sync.Mutex
	var judge []func() // when the history is complete
	release := func() {}
	for range 400 {
		elapse(time.Duration(random.IntN(20)) * time.Millisecond)
		switch random.IntN(8) {
		case 0, 1:
			rv := put(store, poddata.Pod("a/one"))
			h.add(rv, fmt.Sprintf("a/one@%d", rv))
		case 2:
			if rv := store.Remove(key); rv > 0 {
				h.add(rv, "")
			}
		case 3:
			h.add(store.Touch(), h.last())
		case 4:
			release = store.Hold()
		case 5:
			release()
		}
		since := h.now()
		readers.Go(func() {
			pod := &example.Pod{}
			if !assert.NoError(t, c.Get(t.Context(), key, storage.GetOptions{IgnoreNotFound: true}, pod), "a GET failed") {
				return
			}
			got := ""
			if pod.Name != "" {
				got = fmt.Sprintf("%s/%s@%s", pod.Namespace, pod.Name, pod.ResourceVersion)
			}
			mu.Lock()
			defer mu.Unlock()
			judge = append(judge, func() {
				assert.True(t, h.between(since, got), "a GET since %d has returned %q", since, got)
			})
		})
	}
	release()
	readers.Wait()
	for _, judge := range judge {
		judge()
	}
}
