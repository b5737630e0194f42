// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// newCold returns a cache in a bubble that can't list its storage, and what
// lets it.
func newCold(t *testing.T, store *memstore.Store, change ...func(*cacher.Config)) (c *cacher.Cacher, open func()) {
	t.Helper()
	open = store.Gate("watch")
	config := podConfig(store)
	for _, change := range change {
		change(&config)
	}
	c, err := cacher.New(config)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return c, open
}

// A cache that is not ready passes on a GET and a page of everything, which
// storage answers cheaply, and tells all others to come again (KEP-4568).
func TestNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		meters, metric := metered(t)
		store := newStore(poddata.Pod("a/one", "x=y"), poddata.Pod("a/two"))
		c, open := newCold(t, store, meters)
		defer c.Stop()
		if c.Ready() || !errors.Is(c.ReadinessCheck(), storage.ErrStorageNotReady) {
			t.Errorf("Ready is %v, the check says %v", c.Ready(), c.ReadinessCheck())
		}
		for _, rv := range []string{"", "0", "2"} {
			pod := &example.Pod{}
			if err := c.Get(t.Context(), "/pods/a/one", storage.GetOptions{ResourceVersion: rv}, pod); err != nil || pod.Name != "one" {
				t.Errorf("GET at %q: got %q, %v", rv, pod.Name, err)
			}
		}
		if n := store.Requests()["get"]; n != 3 {
			t.Errorf("storage got %d GETs, want 3", n)
		}
		for _, tc := range []struct {
			name   string
			served bool
			opts   func(*storage.ListOptions)
		}{
			{"a page", true, func(o *storage.ListOptions) { o.Predicate.Limit = 1 }},
			{"a page at 0", true, func(o *storage.ListOptions) { o.Predicate.Limit, o.ResourceVersion = 1, "0" }},
			{"a page at a version", true, func(o *storage.ListOptions) { o.Predicate.Limit, o.ResourceVersion = 1, "2" }},
			{"everything", false, func(*storage.ListOptions) {}},
			{"everything at 0", false, func(o *storage.ListOptions) { o.ResourceVersion = "0" }},
			{"everything at a version", false, func(o *storage.ListOptions) { o.ResourceVersion = "2" }},
			{"exactly a version", false, func(o *storage.ListOptions) { o.ResourceVersion = "2"; exactly(o) }},
			{"a page of a selection", false, func(o *storage.ListOptions) { selecting("x=y", "")(o); o.Predicate.Limit = 1 }},
			{"a selection", false, selecting("", "metadata.name=one")},
		} {
			before := store.Requests()["list"]
			opts := everything("")
			tc.opts(&opts)
			err := c.GetList(t.Context(), "/pods/", opts, &example.PodList{})
			if served := store.Requests()["list"] > before; served != tc.served {
				t.Errorf("%s: passed on is %v, want %v", tc.name, served, tc.served)
			}
			if code, _ := retryAfter(err); tc.served != (err == nil) || (!tc.served && code != http.StatusTooManyRequests) {
				t.Errorf("%s: got %v", tc.name, err)
			}
		}
		for series, want := range map[string]float64{
			`reads_total{decision="delegate",verb="get"}`: 3, `reads_total{decision="delegate",verb="list"}`: 3, `reads_total{decision="refuse",verb="list"}`: 6,
		} {
			if got := metric(series); got != want {
				t.Errorf("%s is %v, want %v", series, got, want)
			}
		}
		open()
		if err := c.Wait(t.Context()); err != nil || !c.Ready() || c.ReadinessCheck() != nil {
			t.Errorf("Wait: %v, ready %v, check %v", err, c.Ready(), c.ReadinessCheck())
		}
		expectList(t, c, "/pods/", "0", "a/one a/two@3")
	})
}

// The longer it takes the later clients are told to come again, up to half a
// minute, and they are told why, when that is known.
func TestRetryAfterGrowsWithTheDowntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		c, open := newCold(t, store)
		defer c.Stop()
		began := time.Now()
		last := 0
		for _, tc := range []struct {
			downtime time.Duration
			want     int
		}{{0, 1}, {11 * time.Second, 1}, {12 * time.Second, 2}, {24 * time.Second, 4}, {36 * time.Second, 8}, {48 * time.Second, 16}, {time.Minute, 30}, {time.Hour, 30}} {
			elapse(tc.downtime - time.Since(began))
			code, seconds := retryAfter(c.GetList(t.Context(), "/pods/", everything("0"), &example.PodList{}))
			if code != http.StatusTooManyRequests || seconds != tc.want {
				t.Errorf("after %v: %d, retry after %d s, want %d s", tc.downtime, code, seconds, tc.want)
			}
			if seconds < last {
				t.Errorf("after %v: retry after %d s, before that %d s", tc.downtime, seconds, last)
			}
			last = seconds
		}
		store.Fail("watch", errors.New("no leader"))
		store.Fail("list", errors.New("no leader"))
		open()
		elapse(time.Minute)
		err := c.GetList(t.Context(), "/pods/", everything("0"), &example.PodList{})
		if !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "no leader") {
			t.Errorf("got %v, want a 429 that says why", err)
		}
		if last := c.Status().LastError; last == nil || !strings.Contains(last.Message, "no leader") {
			t.Errorf("the status says %+v", last)
		}
		// The time begins anew with the next downtime.
		store.Fail("watch", nil)
		store.Fail("list", nil)
		if err := c.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		elapse(time.Hour)
		put(store, poddata.Pod("a/one"))
		synctest.Wait()
		open = store.Gate("watch")
		store.Restore(1)
		// A restored storage is found out by asking for its version.
		_ = c.GetList(t.Context(), "/pods/", everything(""), &example.PodList{})
		if c.Ready() {
			t.Fatal("the cache is ready after a restore")
		}
		if _, seconds := retryAfter(c.GetList(t.Context(), "/pods/", everything("0"), &example.PodList{})); seconds != 1 {
			t.Errorf("retry after %d s at the beginning of a downtime, want 1", seconds)
		}
		open()
		if err := c.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// Wait ends with its context and with the cache.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newCold(t, newStore())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		ended := make(chan error, 1)
		go func() { ended <- c.Wait(t.Context()) }()
		synctest.Wait()
		c.Stop()
		if err := <-ended; err == nil {
			t.Error("Wait has not failed when the cache was stopped")
		}
		if err := c.Wait(t.Context()); err == nil {
			t.Error("Wait does not fail after the cache was stopped")
		}
	})
}
