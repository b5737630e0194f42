// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
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
	switch {
	case r.under():
		t.Errorf("the read goes on, want %q", want)
	case r.err != nil:
		t.Errorf("got %v, want %q", r.err, want)
	case r.got != want:
		t.Errorf("got %q, want %q", r.got, want)
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

// metered gives the cache metrics of its own, to be read by name and labels.
func metered(t testing.TB) (func(*cacher.Config), func(series string) float64) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	m, err := metrics.New(registry)
	if err != nil {
		t.Fatal(err)
	}
	value := func(series string) float64 {
		t.Helper()
		name, labels, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
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
				if strings.Join(sorted(found), ",") == labels {
					return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
				}
			}
		}
		t.Fatalf("there is no series %s: %v", series, testutil.CollectAndCount(registry))
		return 0
	}
	return func(c *cacher.Config) { c.Metrics = m }, value
}

// Regression 18, and Raft's ReadIndex: 64 consistent reads at once share at
// most two version requests.
func TestConsistentReadsShareVersionRequests(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		before := store.Requests()
		open := store.Gate("version")
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
		synctest.Wait()
		for i, r := range reads {
			expectRead(t, r, []string{"a/one@2", "a/one@2"}[i%2])
		}
		after := store.Requests()
		if n := after["version"] - before["version"]; n != 2 {
			t.Errorf("storage was asked for its version %d times, want 2: for the first, and for all who came meanwhile", n)
		}
		if after["list"] != before["list"] || after["get"] != before["get"] {
			t.Errorf("storage was read: %v, before %v", after, before)
		}
	})
}

// slowVersions answers version requests when it is told to, with the version
// from when it was asked.
type slowVersions struct {
	*memstore.Store
	answer chan struct{}
}

func (s slowVersions) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	rv, err := s.Store.GetCurrentResourceVersion(ctx)
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
		store := slowVersions{newStore(poddata.Pod("a/one")), make(chan struct{})}
		c := start(t, store, func(c *cacher.Config) { c.DisableSizeEstimation = true })
		first := goList(t.Context(), c, "")
		synctest.Wait()
		release := store.Hold()
		put(store.Store, poddata.Pod("a/two"))
		second, third := goList(t.Context(), c, ""), goGet(t.Context(), c, "/pods/a/two", "")
		synctest.Wait()
		store.answer <- struct{}{} // 2, to the first
		synctest.Wait()
		expectRead(t, first, "a/one@2")
		if !second.under() || !third.under() {
			t.Fatalf("reads ended on an answer from before: %+v %+v", second, third)
		}
		store.answer <- struct{}{} // 3
		synctest.Wait()
		if !second.under() || !third.under() {
			t.Fatalf("reads did not wait for the version that they were told: %+v %+v", second, third)
		}
		release()
		synctest.Wait()
		expectRead(t, second, "a/one a/two@3")
		expectRead(t, third, "a/two@3")
		c.Stop()
	})
}

// A version request that hangs fails the reads that share it, in a way that
// makes clients retry, and no others.
func TestHungVersionRequest(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		open := store.Gate("version")
		hung := goList(t.Context(), c, "")
		synctest.Wait()
		next := goList(t.Context(), c, "")
		elapse(10*time.Second + time.Millisecond)
		synctest.Wait()
		if hung.under() || !apierrors.IsTimeout(hung.err) || hung.err.Error() == "" {
			t.Errorf("got %v, want a timeout", hung.err)
		}
		if _, seconds := retryAfter(hung.err); seconds == 0 {
			t.Errorf("%v does not say when to retry", hung.err)
		}
		if !next.under() {
			t.Errorf("the next read shared the request from before it: %v", next.err)
		}
		open()
		synctest.Wait()
		expectRead(t, next, "a/one@2")
	})
}

// A storage that can't tell its version fails consistent reads, not others.
func TestFailedVersionRequest(t *testing.T) {
	store := newStore(poddata.Pod("a/one"))
	c := start(t, store)
	store.Fail("version", errors.New("no leader"))
	if err := c.GetList(testContext(t), "/pods/", everything(""), &example.PodList{}); err == nil || !strings.Contains(err.Error(), "no leader") {
		t.Errorf("got %v, want the storage's error", err)
	}
	expectList(t, c, "/pods/", "0", "a/one@2")
	store.Fail("version", nil)
	expectList(t, c, "/pods/", "", "a/one@2")
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
					if where == "for the version" {
						store.Gate("version")
					}
					ctx, cancel := context.WithCancel(t.Context())
					began := time.Now()
					r := read(ctx, c)
					synctest.Wait()
					if !r.under() {
						t.Fatalf("the read does not wait: %q %v", r.got, r.err)
					}
					cancel()
					synctest.Wait()
					if r.under() || !errors.Is(r.err, context.Canceled) {
						t.Errorf("the read goes on, or ended with %v", r.err)
					}
					if waited := time.Since(began); waited != 0 {
						t.Errorf("it took %v", waited)
					}
					elapse(time.Second)
					before := store.Requests()
					elapse(10 * time.Second)
					if after := store.Requests(); after["progress"] != before["progress"] {
						t.Errorf("progress was requested for nobody: %d times", after["progress"]-before["progress"])
					}
				})
			})
		}
	}
}

// Progress is requested while reads wait, and only then.
func TestProgressIsRequestedWhileReadsWait(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		elapse(time.Hour)
		if n := store.Requests()["progress"]; n != 0 {
			t.Errorf("progress was requested %d times for nobody", n)
		}
		// Another resource's write: only a report tells that nothing is missing.
		store.Touch()
		expectList(t, c, "/pods/", "", "a/one@3")
		if n := store.Requests()["progress"]; n != 1 {
			t.Errorf("progress was requested %d times for one read, want once", n)
		}
		elapse(time.Hour)
		release := store.Hold()
		store.Touch()
		r := goList(t.Context(), c, "")
		elapse(time.Second)
		if n := store.Requests()["progress"]; n < 8 || n > 14 {
			t.Errorf("progress was requested %d times while a read waited for a second, want about ten", n)
		}
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
				for name, r := range reads {
					<-r.done
					if waited := time.Since(began); waited != want {
						t.Errorf("%s waited %v, want %v", name, waited, want)
					}
					if !storage.IsTooLargeResourceVersion(r.err) {
						t.Errorf("%s: got %v", name, r.err)
					}
					if code, seconds := retryAfter(r.err); code != http.StatusGatewayTimeout || seconds != 1 {
						t.Errorf("%s: code %d, retry after %d s", name, code, seconds)
					}
				}
				if n := metric("read_wait_seconds"); n != 2 {
					t.Errorf("%v waits are counted, want 2", n)
				}
			}, meters, func(c *cacher.Config) { c.FreshnessTimeout = timeout })
		})
	}
}

// Regression 16, and 4 of what operators ask for: a stale cache lets a bounded
// number of consistent reads through to storage, however fast storage answers,
// and tells the others when to come again.
func TestStaleCacheShieldsStorage(t *testing.T) {
	for _, tc := range []struct{ configured, bound int }{{0, cacher.DefaultStaleReads}, {3, 3}, {-1, 0}} {
		t.Run(fmt.Sprint(tc.configured), func(t *testing.T) {
			meters, metric := metered(t)
			inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				store.Hold()
				put(store, poddata.Pod("a/two"))
				before := store.Requests()
				for round := 1; round <= 2; round++ {
					served, refused := manyReads(t, c, 200)
					if served != tc.bound || refused != 200-tc.bound {
						t.Errorf("round %d: %d reads were served and %d refused, want %d of 200 served", round, served, refused, tc.bound)
					}
					after := store.Requests()
					if n := after["list"] + after["get"] - before["list"] - before["get"]; n != round*tc.bound {
						t.Errorf("round %d: storage saw %d reads in all, want %d", round, n, round*tc.bound)
					}
				}
				for series, want := range map[string]int{
					`stale_reads_total{answer="storage"}`:            2 * tc.bound,
					`stale_reads_total{answer="refused"}`:            2 * (200 - tc.bound),
					`reads_total{decision="consistent",verb="list"}`: 0,
					`reads_total{decision="other",verb="other"}`:     0,
					`reads_total{decision="delegate",verb="list"}`:   -1,
					`reads_total{decision="refuse",verb="get"}`:      -1,
				} {
					if got := metric(series); want >= 0 && got != float64(want) {
						t.Errorf("%s is %v, want %d", series, got, want)
					}
				}
				all := 0.0
				for _, verb := range []string{"get", "list"} {
					for _, decision := range []string{"consistent", "delegate", "refuse"} {
						all += metric(fmt.Sprintf("reads_total{decision=%q,verb=%q}", decision, verb))
					}
				}
				if all != 400 {
					t.Errorf("%v reads are counted, want 400: each once", all)
				}
			}, meters, func(c *cacher.Config) { c.StaleReads = tc.configured })
		})
	}
}

// manyReads does n consistent reads at once of a stale cache, and returns how
// many were served and how many told to retry.
func manyReads(t *testing.T, c *cacher.Cacher, n int) (served, refused int) {
	var reads []*reading
	for i := range n {
		if i%2 == 0 {
			reads = append(reads, goList(t.Context(), c, ""))
		} else {
			reads = append(reads, goGet(t.Context(), c, "/pods/a/two", ""))
		}
	}
	for _, r := range reads {
		<-r.done
		code, seconds := retryAfter(r.err)
		switch {
		case r.err == nil && strings.HasSuffix(r.got, "a/two@3"):
			served++
		case code == http.StatusTooManyRequests && seconds == 1:
			refused++
		default:
			t.Errorf("got %q, %v", r.got, r.err)
		}
	}
	return served, refused
}

// Reads that take long hold their places.
func TestStaleReadsUnderWayAreBounded(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		store.Hold()
		put(store, poddata.Pod("a/two"))
		open := store.Gate("list")
		slow := goList(t.Context(), c, "")
		elapse(time.Minute)
		if !slow.under() {
			t.Fatalf("got %q %v", slow.got, slow.err)
		}
		other := goList(t.Context(), c, "")
		elapse(time.Minute)
		if other.under() || !apierrors.IsTooManyRequests(other.err) {
			t.Errorf("got %q %v, want 429", other.got, other.err)
		}
		open()
		synctest.Wait()
		expectRead(t, slow, "a/one a/two@3")
		expectRead(t, after(goList(t.Context(), c, "")), "a/one a/two@3")
	}, func(c *cacher.Config) { c.StaleReads = 1 })
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
	if err := c.Get(testContext(t), "/pods/a/one", storage.GetOptions{}, &example.Pod{}); err != nil {
		t.Error(err)
	}
	after := store.Requests()
	if after["list"] != before["list"]+1 || after["get"] != before["get"]+1 {
		t.Errorf("storage got %v, before %v, want one list and one get more", after, before)
	}
	expectList(t, c, "/pods/", "0", "a/one@2")
	expectList(t, c, "/pods/", "2", "a/one@2")
	if last := store.Requests(); last["list"] != after["list"] || last["progress"] != 0 {
		t.Errorf("storage got %v, before %v", last, after)
	}
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
	if lists() != first {
		t.Error("a consistent LIST went to storage")
	}
	mu.Lock()
	supported = false
	mu.Unlock()
	expectList(t, c, "/pods/", "", "a/one@2")
	if lists() != first+1 {
		t.Error("a consistent LIST did not go to storage")
	}
}

func TestConsistentGetFromStorage(t *testing.T) {
	for _, fromStorage := range []bool{false, true} {
		store := newStore(poddata.Pod("a/one"))
		c := start(t, store, func(c *cacher.Config) { c.ConsistentGetFromStorage = fromStorage })
		for rv, want := range map[string]int{"": map[bool]int{true: 1}[fromStorage], "0": 0, "2": 0} {
			before := store.Requests()["get"]
			pod := &example.Pod{}
			if err := c.Get(testContext(t), "/pods/a/one", storage.GetOptions{ResourceVersion: rv}, pod); err != nil || pod.Name != "one" {
				t.Errorf("rv=%q: %v %v", rv, pod.Name, err)
			}
			if n := store.Requests()["get"] - before; n != want {
				t.Errorf("ConsistentGetFromStorage=%v, rv=%q: storage got %d, want %d", fromStorage, rv, n, want)
			}
		}
		before := store.Requests()["list"]
		expectList(t, c, "/pods/", "", "a/one@2")
		if store.Requests()["list"] != before {
			t.Error("the option is for GET, and a LIST went to storage")
		}
	}
}

// Regression 13: a read without a version is never older than a write that had
// completed, whatever the cache has heard of it; one at "0" may be.
func TestStaleCache(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		release := store.Hold()
		out := &example.Pod{}
		if err := c.Create(t.Context(), "/pods/a/two", poddata.Pod("a/two"), out, 0); err != nil {
			t.Fatal(err)
		}
		expectList(t, c, "/pods/", "0", "a/one@2")
		list, get, same := goList(t.Context(), c, ""), goGet(t.Context(), c, "/pods/a/two", ""), goList(t.Context(), c, out.ResourceVersion)
		elapse(time.Second)
		if !list.under() || !get.under() || !same.under() {
			t.Errorf("reads did not wait for the write: %+v %+v %+v", list, get, same)
		}
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
	if err := c.Get(testContext(t), "/pods/a/one", storage.GetOptions{ResourceVersion: ahead}, &example.Pod{}); err != nil {
		t.Error(err)
	}
}
