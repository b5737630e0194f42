// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/metrics"
)

// reading is a read under way.
type reading struct {
	done chan struct{}
	err  error
	// got is the list, or the object, as a line.
	got string
}

func (r *reading) under() bool {
	select {
	case <-r.done:
		return false
	default:
		return true
	}
}

// goList lists all pods in a goroutine; goGet gets one.
func goList(ctx context.Context, c storage.Interface, rv string) *reading {
	r := &reading{done: make(chan struct{})}
	go func() {
		defer close(r.done)
		pods := &example.PodList{}
		if r.err = c.GetList(ctx, "/pods/", everything(rv), pods); r.err == nil {
			r.got = lineOf(pods)
		}
	}()
	return r
}

func goGet(ctx context.Context, c storage.Interface, key, rv string) *reading {
	r := &reading{done: make(chan struct{})}
	go func() {
		defer close(r.done)
		pod := &example.Pod{}
		if r.err = c.Get(ctx, key, storage.GetOptions{ResourceVersion: rv}, pod); r.err == nil {
			r.got = fmt.Sprintf("%s/%s@%s", pod.Namespace, pod.Name, pod.ResourceVersion)
		}
	}()
	return r
}

// lineOf writes a list as "ns/name ns/name@rv of the list".
func lineOf(pods *example.PodList) string {
	var names []string
	for _, pod := range pods.Items {
		names = append(names, pod.Namespace+"/"+pod.Name)
	}
	return strings.Join(names, " ") + "@" + pods.ResourceVersion
}

// expectRead wants a read to have ended with a line.
func expectRead(t *testing.T, r *reading, want string) {
	t.Helper()
	if assert.False(t, r.under(), "the read goes on, want %q", want) && assert.NoError(t, r.err, "want %q", want) {
		assert.Equal(t, want, r.got)
	}
}

// retryAfter returns the code and the seconds that a client is told to wait.
func retryAfter(err error) (code int32, seconds int) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return 0, 0
	}
	if details := status.Status().Details; details != nil {
		seconds = int(details.RetryAfterSeconds)
	}
	return status.Status().Code, seconds
}

// metered gives the cache metrics of its own, to be read by name and labels: a
// series that has not appeared yet is 0, and a name without labels stands for all
// series of the metric.
func metered(t testing.TB) (func(*cacher.Config), func(series string) float64) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	m, err := metrics.New(registry)
	require.NoError(t, err)
	value := func(series string) (sum float64) {
		t.Helper()
		name, labels, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
		require.True(t, slices.ContainsFunc(metrics.List(), func(d metrics.Description) bool { return string(d.Name) == "watchcache_"+name }), "there is no metric %s", name)
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, family := range families {
			if family.GetName() != "watchcache_"+name {
				continue
			}
			for _, m := range family.GetMetric() {
				var found []string
				for _, label := range m.GetLabel() {
					if label.GetName() != "group" && label.GetName() != "resource" {
						found = append(found, fmt.Sprintf("%s=%q", label.GetName(), label.GetValue()))
					}
				}
				if labels == "" || strings.Join(sorted(found), ",") == labels {
					sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
				}
			}
		}
		return sum
	}
	return func(c *cacher.Config) { c.Metrics = m }, value
}

// Regression 18, and Raft's ReadIndex: 64 consistent reads at once share at
// most two version requests, which ask for the versions of the GETs' keys, too.
func TestConsistentReadsShareVersionRequests(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		before := store.Requests()
		open, openKeys := store.Gate("version"), store.Gate("keyversions")
		var reads []*reading
		for i := range 64 {
			if i%2 == 0 {
				reads = append(reads, goList(t.Context(), c, ""))
			} else {
				reads = append(reads, goGet(t.Context(), c, "/pods/a/one", ""))
			}
			if i == 0 {
				synctest.Wait() // the first one's request is under way
			}
		}
		synctest.Wait()
		open()
		openKeys()
		synctest.Wait()
		for i, r := range reads {
			expectRead(t, r, []string{"a/one@2", "a/one@2"}[i%2])
		}
		after := store.Requests()
		asked := after["version"] - before["version"] + after["keyversions"] - before["keyversions"]
		assert.Equal(t, 2, asked, "storage is asked for its version for the first read, and for all that came meanwhile")
		assert.Equal(t, before["list"], after["list"], "storage was listed")
		assert.Equal(t, before["get"], after["get"], "storage was read")
	})
}

// slowVersions can't tell the versions of keys, and answers version requests when it is told to, with the version
// from when it was asked.
type slowVersions struct {
	withoutKeys
	store  *memstore.Store
	answer chan struct{}
}

func (s slowVersions) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	rv, err := s.store.GetCurrentResourceVersion(ctx)
	select {
	case <-s.answer:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	return rv, err
}

// A version that was asked for before a read arrived may be older than what
// had been written by then.
func TestConsistentReadAsksAfterItArrived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(poddata.Pod("a/one"))
		slow := slowVersions{withoutKeys{store}, store, make(chan struct{})}
		c := start(t, slow, func(c *cacher.Config) { c.DisableSizeEstimation = true })
		first := goList(t.Context(), c, "")
		synctest.Wait()
		release := store.Hold()
		put(store, poddata.Pod("a/two"))
		second, third := goList(t.Context(), c, ""), goGet(t.Context(), c, "/pods/a/two", "")
		synctest.Wait()
		slow.answer <- struct{}{} // 2, to the first
		synctest.Wait()
		expectRead(t, first, "a/one@2")
		require.True(t, second.under(), "reads ended on an answer from before: %+v %+v", second, third)
		require.True(t, third.under(), "reads ended on an answer from before: %+v %+v", second, third)
		slow.answer <- struct{}{} // 3
		synctest.Wait()
		require.True(t, second.under(), "reads did not wait for the version that they were told: %+v %+v", second, third)
		require.True(t, third.under(), "reads did not wait for the version that they were told: %+v %+v", second, third)
		release()
		synctest.Wait()
		expectRead(t, second, "a/one a/two@3")
		expectRead(t, third, "a/two@3")
		c.Stop()
	})
}

// A storage that can't tell its version answers consistent reads itself: all
// GETs, and as many LISTs as there are places for. The others are told to
// retry, and reads of what the cache has are served.
func TestFailedVersionRequest(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		store.Fail("version", errors.New("no leader"))
		store.Fail("keyversions", errors.New("no leader"))
		before := store.Requests()
		began := time.Now()
		var reads []*reading
		for range 50 {
			reads = append(reads, goList(t.Context(), c, ""), goGet(t.Context(), c, "/pods/a/one", ""))
		}
		refused := 0
		for _, r := range reads {
			if code, seconds := retryAfter(after(r).err); code == http.StatusTooManyRequests && seconds > 0 && strings.Contains(r.err.Error(), "did not tell its resourceVersion") {
				refused++
				continue
			}
			expectRead(t, r, "a/one@2")
		}
		now := store.Requests()
		lists, gets := now["list"]-before["list"], now["get"]-before["get"]
		assert.Equal(t, 3, lists, "the lists that storage got")
		assert.Equal(t, 50, gets, "the GETs that storage got")
		assert.Equal(t, 47, refused, "the reads that were refused")
		assert.Zero(t, time.Since(began), "the time that it took")
		expectList(t, c, "/pods/", "0", "a/one@2")
		store.Fail("version", nil)
		expectList(t, c, "/pods/", "", "a/one@2")
	}, func(c *cacher.Config) { c.MaxFallbackLists = 3 })
}

// A reader that gives up is gone at once, wherever it waits, and nothing is
// asked of storage for it any more.
func TestCancelledReadIsGone(t *testing.T) {
	for name, read := range map[string]func(context.Context, *cacher.Cacher) *reading{
		"consistent LIST": func(ctx context.Context, c *cacher.Cacher) *reading { return goList(ctx, c, "") },
		"consistent GET": func(ctx context.Context, c *cacher.Cacher) *reading {
			return goGet(ctx, c, "/pods/a/one", "")
		},
		"LIST not older than": func(ctx context.Context, c *cacher.Cacher) *reading { return goList(ctx, c, "3") },
		"GET not older than": func(ctx context.Context, c *cacher.Cacher) *reading {
			return goGet(ctx, c, "/pods/a/one", "3")
		},
	} {
		for _, where := range []string{"for freshness", "for the version"} {
			if where == "for the version" && !strings.HasPrefix(name, "consistent") {
				continue
			}
			t.Run(name+" waits "+where, func(t *testing.T) {
				inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
					store.Hold()
					store.Touch()
					put(store, poddata.Pod("a/one"))
					if where == "for the version" {
						store.Gate("version")
						store.Gate("keyversions")
					}
					ctx, cancel := context.WithCancel(t.Context())
					began := time.Now()
					r := read(ctx, c)
					synctest.Wait()
					require.True(t, r.under(), "the read does not wait: %+v", r)
					cancel()
					synctest.Wait()
					assert.False(t, r.under(), "the read goes on")
					assert.ErrorIs(t, r.err, context.Canceled)
					assert.Zero(t, time.Since(began), "the time that it took")
					elapse(time.Second)
					before := store.Requests()
					elapse(10 * time.Second)
					assert.Equal(t, before["progress"], store.Requests()["progress"], "progress was requested for nobody")
				})
			})
		}
	}
}

// Progress is requested while reads wait, and only then.
func TestProgressIsRequestedWhileReadsWait(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		elapse(time.Hour)
		n := store.Requests()["progress"]
		assert.Zero(t, n, "progress was requested %d times for nobody", n)
		// Another resource's write: only a report tells that nothing is missing.
		store.Touch()
		expectList(t, c, "/pods/", "", "a/one@3")
		n = store.Requests()["progress"]
		assert.Equal(t, 1, n, "progress was requested %d times for one read", n)
		elapse(time.Hour)
		release := store.Hold()
		store.Touch()
		r := goList(t.Context(), c, "")
		elapse(time.Second)
		n = store.Requests()["progress"]
		assert.GreaterOrEqual(t, n, 8, "how often progress was requested while a read waited for a second")
		assert.LessOrEqual(t, n, 14, "how often progress was requested while a read waited for a second")
		release()
		synctest.Wait()
		expectRead(t, r, "a/one@4")
	})
}

// A version that does not come fails a read after FreshnessTimeout, and clients
// know the error: they retry.
func TestFreshnessTimeout(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Second} {
		want := timeout
		if want == 0 {
			want = cacher.DefaultFreshnessTimeout
		}
		t.Run(want.String(), func(t *testing.T) {
			meters, metric := metered(t)
			inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				began := time.Now()
				reads := map[string]*reading{
					"LIST": goList(t.Context(), c, "100"), "GET": goGet(t.Context(), c, "/pods/a/one", "100"),
				}
				for _, name := range []string{"GET", "LIST"} {
					r, want := reads[name], want
					if name == "GET" {
						want /= 6 // and storage is asked, which has not reached it either
					}
					<-r.done
					assert.Equal(t, want, time.Since(began), "how long %s waited", name)
					assert.True(t, storage.IsTooLargeResourceVersion(r.err), "%s: got %v", name, r.err)
					code, seconds := retryAfter(r.err)
					assert.EqualValues(t, http.StatusGatewayTimeout, code, "%s: the status code", name)
					assert.Equal(t, 1, seconds, "%s: retry after", name)
				}
				n := metric("read_wait_seconds")
				assert.EqualValues(t, 2, n, "%v waits are counted", n)
			}, meters, func(c *cacher.Config) { c.FreshnessTimeout = timeout })
		})
	}
}

// Regressions 16 and 54, and 4 of what operators ask for: a stale cache lets a
// bounded number of consistent LISTs through to storage, however fast storage
// answers, and tells the others when to come again. GETs of single objects are
// answered, all of them.
func TestStaleCacheShieldsStorage(t *testing.T) {
	for _, tc := range []struct{ configured, bound int }{{0, cacher.DefaultMaxFallbackLists}, {3, 3}, {-1, 0}} {
		t.Run(fmt.Sprint(tc.configured), func(t *testing.T) {
			meters, metric := metered(t)
			inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				release := store.Hold()
				put(store, poddata.Pod("a/two"))
				before := store.Requests()
				for round := 1; round <= 2; round++ {
					served, refused := manyReads(t, c, 200, fmt.Sprint("@", 2+round))
					assert.Equal(t, tc.bound, served, "round %d: LISTs that were served", round)
					assert.Equal(t, 100-tc.bound, refused, "round %d: LISTs that were refused", round)
					now := store.Requests()
					lists, gets := now["list"]-before["list"], now["get"]-before["get"]
					assert.Equal(t, round*tc.bound, lists, "round %d: LISTs that storage saw in all", round)
					assert.Equal(t, round*100, gets, "round %d: GETs that storage saw in all", round)
					// A watch that never brings anything would count as one of a silent storage.
					release()
					elapse(10 * time.Second)
					release = store.Hold()
					put(store, poddata.Pod("a/two"))
				}
				for series, want := range map[string]int{
					`stale_reads_total{answer="storage"}`:            2 * (100 + tc.bound),
					`stale_reads_total{answer="refused"}`:            2 * (100 - tc.bound),
					`reads_total{decision="consistent",verb="list"}`: 0,
					`reads_total{decision="consistent",verb="get"}`:  0,
					`reads_total{decision="other",verb="other"}`:     0,
					`reads_total{decision="delegate",verb="list"}`:   2 * tc.bound,
					`reads_total{decision="delegate",verb="get"}`:    200,
					`reads_total{decision="refuse",verb="list"}`:     2 * (100 - tc.bound),
					`reads_total{decision="refuse",verb="get"}`:      0,
				} {
					assert.Equal(t, float64(want), metric(series), series)
				}
			}, meters, func(c *cacher.Config) { c.MaxFallbackLists = tc.configured })
		})
	}
}

// manyReads does n consistent reads at once of a stale cache, every other one a
// GET, and returns how many LISTs were served and how many told to retry.
func manyReads(t *testing.T, c *cacher.Cacher, n int, at string) (served, refused int) {
	var reads []*reading
	for i := range n {
		if i%2 == 0 {
			reads = append(reads, goList(t.Context(), c, ""))
		} else {
			reads = append(reads, goGet(t.Context(), c, "/pods/a/two", ""))
		}
	}
	for i, r := range reads {
		<-r.done
		code, seconds := retryAfter(r.err)
		switch {
		case i%2 == 1:
			expectRead(t, r, "a/two"+at)
		case r.err == nil && strings.HasSuffix(r.got, "a/two"+at):
			served++
		case code == http.StatusTooManyRequests && seconds == 1:
			refused++
		default:
			assert.Fail(t, fmt.Sprintf("got %q, %v", r.got, r.err))
		}
	}
	return served, refused
}

// Reads that take long hold their places.
func TestStaleReadsUnderWayAreBounded(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		miss(store, func() { put(store, poddata.Pod("a/two")) })
		expectList(t, c, "/pods/", "", "a/one@3") // nobody knows yet
		relist := store.Gate("watch")
		elapse(90 * time.Second) // a comparison finds it
		open := store.Gate("list")
		slow := goList(t.Context(), c, "")
		elapse(time.Minute)
		require.True(t, slow.under(), "the slow read has ended: %+v", slow)
		other := goList(t.Context(), c, "")
		elapse(time.Minute)
		assert.False(t, other.under(), "the other read goes on")
		assert.True(t, apierrors.IsTooManyRequests(other.err), "got %q %v", other.got, other.err)
		open()
		synctest.Wait()
		expectRead(t, slow, "a/one a/two@3")
		expectRead(t, after(goList(t.Context(), c, "")), "a/one a/two@3")
		relist()
	}, func(c *cacher.Config) { c.MaxFallbackLists, c.ConsistencyCheckInterval = 1, time.Minute })
}

// after waits for a read to end.
func after(r *reading) *reading { <-r.done; return r }

// Without progress reports the cache can't know that it is fresh: consistent
// reads go to storage, all others are served, and nobody asks for progress.
func TestNoProgressReports(t *testing.T) {
	store := newStore(poddata.Pod("a/one"))
	c := start(t, store, func(c *cacher.Config) { c.WatchProgress = func() bool { return false } })
	before := store.Requests()
	expectList(t, c, "/pods/", "", "a/one@2")
	assert.NoError(t, c.Get(testContext(t), "/pods/a/one", storage.GetOptions{}, &example.Pod{}))
	after := store.Requests()
	assert.Equal(t, before["list"]+1, after["list"], "the lists that storage got")
	assert.Equal(t, before["get"]+1, after["get"], "the GETs that storage got")
	expectList(t, c, "/pods/", "0", "a/one@2")
	expectList(t, c, "/pods/", "2", "a/one@2")
	last := store.Requests()
	assert.Equal(t, after["list"], last["list"], "the lists that storage got")
	assert.Zero(t, last["progress"], "the requests for progress")
}

// Whether storage reports progress is asked again and again: it may be
// restarted with another version.
func TestProgressSupportChanges(t *testing.T) {
	var mu sync.Mutex
	supported := true
	store := newStore(poddata.Pod("a/one"))
	c := start(t, store, func(c *cacher.Config) {
		c.WatchProgress = func() bool { mu.Lock(); defer mu.Unlock(); return supported }
	})
	lists := func() int { return store.Requests()["list"] }
	first := lists()
	expectList(t, c, "/pods/", "", "a/one@2")
	assert.Equal(t, first, lists(), "a consistent LIST went to storage")
	mu.Lock()
	supported = false
	mu.Unlock()
	expectList(t, c, "/pods/", "", "a/one@2")
	assert.Equal(t, first+1, lists(), "a consistent LIST did not go to storage")
}

func TestConsistentGetFromStorage(t *testing.T) {
	for _, fromStorage := range []bool{false, true} {
		store := newStore(poddata.Pod("a/one"))
		c := start(t, store, func(c *cacher.Config) { c.ConsistentGetFromStorage = fromStorage })
		for rv, want := range map[string]int{"": map[bool]int{true: 1}[fromStorage], "0": 0, "2": 0} {
			before := store.Requests()["get"]
			pod := &example.Pod{}
			err := c.Get(testContext(t), "/pods/a/one", storage.GetOptions{ResourceVersion: rv}, pod)
			require.NoError(t, err, "rv=%q", rv)
			assert.Equal(t, "one", pod.Name, "rv=%q", rv)
			assert.Equal(t, want, store.Requests()["get"]-before, "ConsistentGetFromStorage=%v, rv=%q: GETs that storage got", fromStorage, rv)
		}
		before := store.Requests()["list"]
		expectList(t, c, "/pods/", "", "a/one@2")
		assert.Equal(t, before, store.Requests()["list"], "the option is for GET, and a LIST went to storage")
	}
}

// Regression 13: a read without a version is never older than a write that had
// completed, whatever the cache has heard of it; one at "0" may be.
func TestStaleCache(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		release := store.Hold()
		out := &example.Pod{}
		require.NoError(t, c.Create(t.Context(), "/pods/a/two", poddata.Pod("a/two"), out, 0))
		expectList(t, c, "/pods/", "0", "a/one@2")
		list, get, same := goList(t.Context(), c, ""), goGet(t.Context(), c, "/pods/a/two", ""), goList(t.Context(), c, out.ResourceVersion)
		elapse(cacher.DefaultFreshnessTimeout / 10)
		assert.True(t, list.under(), "the LIST did not wait for the write: %+v", list)
		assert.True(t, get.under(), "the GET did not wait for the write: %+v", get)
		assert.True(t, same.under(), "the GET of the same object did not wait for the write: %+v", same)
		release()
		synctest.Wait()
		expectRead(t, list, "a/one a/two@3")
		expectRead(t, get, "a/two@3")
		expectRead(t, same, "a/one a/two@3")
	})
}

// Regression 14: a client that knows a later version than an idle cache is
// served as soon as storage reports that nothing is missing.
func TestClientAheadOfAnIdleCache(t *testing.T) {
	store := newStore(poddata.Pod("a/one"))
	c := start(t, store)
	ahead := fmt.Sprint(store.Touch())
	expectList(t, c, "/pods/", ahead, "a/one@3")
	assert.NoError(t, c.Get(testContext(t), "/pods/a/one", storage.GetOptions{ResourceVersion: ahead}, &example.Pod{}))
}
