// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
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
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
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

// Progress is asked for again and again while a read waits.
func TestProgressIsRequestedWhileReadsWait(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		release := store.Hold()
		store.Touch()
		r := goList(t.Context(), c, "")
		elapse(time.Second)
		n := store.Requests()["progress"]
		assert.GreaterOrEqual(t, n, 8, "how often progress was requested while a read waited for a second")
		assert.LessOrEqual(t, n, 14, "how often progress was requested while a read waited for a second")
		release()
		synctest.Wait()
		expectRead(t, r, "a/one@3")
	})
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

// after waits for a read to end.
func after(r *reading) *reading { <-r.done; return r }

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

// A waiting read has no goroutine but its caller's, and holds up nobody:
// events are applied and delivered, and reads of what is there are served.
// (Regression 35.)
func TestWaitingReadsHoldUpNobody(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "2")
		expectReceived(t, w)
		const readers = 500
		before := runtime.NumGoroutine()
		ctx, cancel := context.WithCancel(t.Context())
		var reads []*reading
		for i := range readers {
			reads = append(reads, goList(ctx, c, fmt.Sprint(1000+i)))
		}
		synctest.Wait()
		assert.LessOrEqual(t, runtime.NumGoroutine()-before, readers+2, "the goroutines of %d readers", readers)
		put(store, poddata.Pod("a/two"))
		expectReceived(t, w, "ADDED a/two@3")
		expectList(t, c, "/pods/", "0", "a/one a/two@3")
		expectList(t, c, "/pods/", "", "a/one a/two@3")
		cancel()
		synctest.Wait()
		for _, r := range reads {
			require.False(t, r.under(), "a cancelled read goes on")
			require.Error(t, r.err, "a cancelled read got %q", r.got)
		}
	})
}

// Each version wakes those who wait for it or less, however they came and
// whoever has left.
func TestVersionsWakeTheirReaders(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		wanted := []int{7, 3, 5, 5, 9, 2, 8, 4, 6, 3}
		reads := map[int][]*reading{}
		for _, rv := range wanted {
			reads[rv] = append(reads[rv], goList(t.Context(), c, fmt.Sprint(rv)))
		}
		ctx, cancel := context.WithCancel(t.Context())
		for _, rv := range wanted {
			goList(ctx, c, fmt.Sprint(rv))
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		for rv := 2; rv <= 9; rv++ {
			put(store, poddata.Pod("a/one"))
			synctest.Wait()
			for at, group := range reads {
				for _, r := range group {
					assert.NotEqual(t, at <= rv, r.under(), "whether a read that waits for %d goes on at %d", at, rv)
				}
			}
		}
	})
}

// A read that has waited until its client's deadline is near says that it was in
// vain while somebody listens: an API server resets the stream of an answer that it
// gets after the deadline. Without a server, the read has all of its time.
func TestReadsThatWaitAnswerBeforeTheirDeadline(t *testing.T) {
	for _, timeout := range []time.Duration{20 * time.Millisecond, 400 * time.Millisecond, 2 * time.Second} {
		for name, read := range map[string]func(ctx context.Context, c *cacher.Cacher) *reading{
			"list not older than": func(ctx context.Context, c *cacher.Cacher) *reading { return goList(ctx, c, "1000") },
			"get not older than":  func(ctx context.Context, c *cacher.Cacher) *reading { return goGet(ctx, c, "/pods/a/one", "1000") },
			"consistent list":     func(ctx context.Context, c *cacher.Cacher) *reading { return goList(ctx, c, "") },
			"consistent get":      func(ctx context.Context, c *cacher.Cacher) *reading { return goGet(ctx, c, "/pods/a/one", "") },
		} {
			t.Run(fmt.Sprint(name, " ", timeout), func(t *testing.T) {
				inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
					for _, kind := range []string{"version", "keyversions", "get"} {
						defer store.Gate(kind)()
					}
					ctx, cancel := context.WithTimeout(t.Context(), timeout)
					defer cancel()
					own := read(ctx, c)
					<-own.done
					assert.ErrorIs(t, own.err, context.DeadlineExceeded)
					ctx, cancel = context.WithTimeout(t.Context(), timeout)
					defer cancel()
					r := read(apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{}), c)
					<-r.done
					assert.NoError(t, ctx.Err(), "the deadline was over when the read failed with %q", r.err)
					var status apierrors.APIStatus
					require.ErrorAs(t, r.err, &status)
					assert.EqualValues(t, http.StatusGatewayTimeout, status.Status().Code, r.err)
					if strings.HasPrefix(name, "consistent") { // regression 149
						assert.ErrorContains(t, r.err, "the time that this request has is over")
					}
				})
			})
		}
	}
}
