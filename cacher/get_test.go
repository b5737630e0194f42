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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// errorClass is what callers tell errors apart by.
func errorClass(err error) string {
	switch {
	case err == nil:
		return "none"
	case strings.Contains(err.Error(), "invalid key"), strings.Contains(err.Error(), "empty key"):
		return "bad key"
	case storage.IsNotFound(err):
		return "not found"
	case storage.IsTooLargeResourceVersion(err):
		return "too large"
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return "expired"
	case apierrors.IsBadRequest(err):
		return "bad request"
	case apierrors.IsTooManyRequests(err):
		return "too many requests"
	}
	return "other"
}

// A GET answers from the cache, without a read of storage, and says of what it
// can't answer what storage says.
func TestGet(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one"), poddata.Pod("a/two")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		before := store.Requests()["get"]
		for _, tc := range []struct {
			key, rv string
			ignore  bool
			want    string
			class   string
		}{
			{"/pods/a/one", "", false, "a/one@2", "none"},
			{"/pods/a/one", "0", false, "a/one@2", "none"},
			{"/pods/a/two", "2", false, "a/two@3", "none"}, // not older than
			{"/pods/a/two", "3", false, "a/two@3", "none"},
			{"/pods/a/none", "", false, "", "not found"},
			{"/pods/a/none", "0", false, "", "not found"},
			{"/pods/a/none", "", true, "/@", "none"},
			{"/pods/a/none", "3", true, "/@", "none"},
			{"/pods/a", "0", false, "", "not found"},
			{"/pods/a/", "0", false, "", "not found"},
			{"/pods/a/one", "4", false, "", "too large"},
			{"/pods/a/one", "18446744073709551615", false, "", "too large"},
			{"/pods/a/one", "x", false, "", "bad request"},
			{"/pods/a/one", "-1", false, "", "bad request"},
			{"/pods/a/one", "1.5", true, "", "bad request"},
			{"/nodes/a/one", "0", false, "", "bad key"},
			{"/pods/../one", "0", true, "", "bad key"},
			{"/pods/a/..", "", false, "", "bad key"},
			{"/pods/./one", "", false, "", "bad key"},
			{"", "", false, "", "bad key"},
			{"/", "0", true, "", "bad key"},
		} {
			pod := poddata.Pod("what/was", "there=before")
			err := c.Get(t.Context(), tc.key, storage.GetOptions{ResourceVersion: tc.rv, IgnoreNotFound: tc.ignore}, pod)
			assert.Equal(t, tc.class, errorClass(err), "%s at %q: %v", tc.key, tc.rv, err)
			if err == nil {
				assert.Equal(t, tc.want, fmt.Sprintf("%s/%s@%s", pod.Namespace, pod.Name, pod.ResourceVersion), "%s at %q", tc.key, tc.rv)
			}
			// Storage says the same, but that it does not wait for a version.
			fromStorage := store.Get(t.Context(), tc.key, storage.GetOptions{ResourceVersion: tc.rv, IgnoreNotFound: tc.ignore}, &example.Pod{})
			assert.Equal(t, tc.class, errorClass(fromStorage), "%s at %q: storage says %v", tc.key, tc.rv, fromStorage)
			before++
		}
		assert.Equal(t, before, store.Requests()["get"], "the GETs that went to storage")
	})
}

func TestGetIntoWhatDoesNotFit(t *testing.T) {
	store := newStore(poddata.Pod("a/one"))
	c := start(t, store)
	for name, into := range map[string]runtime.Object{
		"nil":          nil,
		"no pointer":   byValue{},
		"nil pointer":  (*example.Pod)(nil),
		"another type": &example.PodList{},
	} {
		for _, rv := range []string{"", "0"} {
			err := c.Get(testContext(t), "/pods/a/one", storage.GetOptions{ResourceVersion: rv}, into)
			assert.Error(t, err, "%s at %q: no error", name, rv)
			if name == "another type" {
				assert.Contains(t, fmt.Sprint(err), "PodList", "%s at %q: %v does not name the type", name, rv, err)
			}
		}
	}
}

// byValue is a runtime.Object that is no pointer.
type byValue struct{ example.Pod }

func (byValue) DeepCopyObject() runtime.Object   { return byValue{} }
func (byValue) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// A consistent GET gives an object that is all the caller's own: who reads
// before writing changes what was read.
func TestConsistentGetIsPrivate(t *testing.T) {
	store := newStore(poddata.Pod("a/one", "x=y"))
	c := start(t, store)
	want := poddata.Pod("a/one", "x=y")
	want.ResourceVersion = "2"
	for range 2 {
		pod := &example.Pod{}
		require.NoError(t, c.Get(testContext(t), "/pods/a/one", storage.GetOptions{}, pod))
		assert.Equal(t, want, pod)
		pod.Labels["x"] = "z"
		pod.Name = "other"
	}
	for _, pod := range expectList(t, c, "/pods/", "0", "a/one@2").Items {
		assert.Equal(t, "y", pod.Labels["x"], "the cache has %v", pod.Labels)
	}
}

// A GET at a version shares no more than what is below the top level.
func TestGetDoesNotAliasTheTopLevel(t *testing.T) {
	store := newStore(poddata.Pod("a/one", "x=y"))
	c := start(t, store)
	for range 2 {
		pod := &example.Pod{}
		require.NoError(t, c.Get(testContext(t), "/pods/a/one", storage.GetOptions{ResourceVersion: "0"}, pod))
		assert.Equal(t, "one", pod.Name, "%+v", pod)
		assert.Equal(t, "2", pod.ResourceVersion, "%+v", pod)
		assert.Equal(t, "y", pod.Labels["x"], "%+v", pod)
		pod.Name, pod.ResourceVersion, pod.Labels = "other", "9", nil
	}
}

func limited(opts storage.ListOptions, limit int64) storage.ListOptions {
	opts.Predicate.Limit = limit
	return opts
}

// anyVersion is a storage that does not compare the resourceVersion of a GET with its
// own, as some do.
type anyVersion struct{ *memstore.Store }

func (s anyVersion) Get(ctx context.Context, key string, opts storage.GetOptions, into runtime.Object) error {
	opts.ResourceVersion = ""
	return s.Store.Get(ctx, key, opts, into)
}

// Regression 151: a GET that has waited in vain for a version gets no older object,
// whatever storage makes of versions; and the object once storage has the version.
func TestGetAtAVersionToCome(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, _ *cacher.Cacher) {
		c := start(t, anyVersion{store})
		defer c.Stop()
		got := goGet(t.Context(), c, "/pods/a/one", "9")
		<-got.done
		assert.True(t, storage.IsTooLargeResourceVersion(got.err), "got %q, %v", got.got, got.err)
		release := store.Hold() // the cache stays as it is
		rv := put(store, poddata.Pod("a/one", "x=y"))
		expectRead(t, after(goGet(t.Context(), c, "/pods/a/one", fmt.Sprint(rv))), fmt.Sprintf("a/one@%d", rv))
		release()
	})
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
	for _, tc := range []struct{ objects, gets, most int }{{1, 64, 1}, {64, 64, 64}, {7, 64, 7}, {300, 300, 100}} {
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
	for seed := range uint64(10) {
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
