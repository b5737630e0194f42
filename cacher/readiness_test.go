// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
	require.NoError(t, err)
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
		assert.False(t, c.Ready(), "Ready")
		assert.ErrorIs(t, c.ReadinessCheck(), storage.ErrStorageNotReady, "the readiness check")
		for _, rv := range []string{"", "0", "2"} {
			pod := &example.Pod{}
			err := c.Get(t.Context(), "/pods/a/one", storage.GetOptions{ResourceVersion: rv}, pod)
			require.NoError(t, err, "GET at %q", rv)
			assert.Equal(t, "one", pod.Name, "GET at %q", rv)
		}
		n := store.Requests()["get"]
		assert.Equal(t, 3, n, "storage got %d GETs", n)
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
			served := store.Requests()["list"] > before
			assert.Equal(t, tc.served, served, "%s: whether the read was passed on", tc.name)
			code, _ := retryAfter(err)
			assert.Equal(t, err == nil, tc.served, "%s: whether the LIST was served: %v", tc.name, err)
			if !tc.served {
				assert.EqualValues(t, http.StatusTooManyRequests, code, "%s: %v", tc.name, err)
			}
		}
		for series, want := range map[string]float64{
			`reads_total{decision="delegate",verb="get"}`: 3, `reads_total{decision="delegate",verb="list"}`: 3, `reads_total{decision="refuse",verb="list"}`: 6,
		} {
			assert.Equal(t, want, metric(series), series)
		}
		open()
		err := c.Wait(t.Context())
		require.NoError(t, err, "Wait")
		assert.True(t, c.Ready(), "Ready")
		assert.NoError(t, c.ReadinessCheck(), "the readiness check")
		expectList(t, c, "/pods/", "0", "a/one a/two@3")
	})
}

// The longer it takes the later clients are told to come again, up to half a
// minute. Status says why, when that is known.
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
			assert.EqualValues(t, http.StatusTooManyRequests, code, "after %v: the status code", tc.downtime)
			assert.Equal(t, tc.want, seconds, "after %v: retry after", tc.downtime)
			assert.GreaterOrEqual(t, seconds, last, "after %v: retry after %d s, before that %d s", tc.downtime, seconds, last)
			last = seconds
		}
		store.Fail("watch", errors.New("etcdserver: no leader"))
		store.Fail("list", errors.New("etcdserver: no leader"))
		store.Fail("version", errors.New("etcdserver: no leader"))
		open()
		elapse(time.Minute)
		err := c.GetList(t.Context(), "/pods/", everything("0"), &example.PodList{})
		assert.True(t, apierrors.IsTooManyRequests(err), "%v", err)
		assert.NotContains(t, err.Error(), "no leader", "a client is told what storage says")
		status := c.Status()
		require.NotNil(t, status.LastError, "the status tells no error")
		assert.Contains(t, status.LastError.Message, "no leader")
		// The time begins again with the next downtime.
		store.Fail("watch", nil)
		store.Fail("list", nil)
		store.Fail("version", nil)
		require.NoError(t, c.Wait(t.Context()))
		elapse(time.Hour)
		put(store, poddata.Pod("a/one"))
		synctest.Wait()
		open = store.Gate("watch")
		store.Restore(1)
		// A restored storage is found out by asking for its version.
		_ = c.GetList(t.Context(), "/pods/", everything(""), &example.PodList{})
		require.False(t, c.Ready(), "the cache is ready after a restore")
		_, seconds := retryAfter(c.GetList(t.Context(), "/pods/", everything("0"), &example.PodList{}))
		assert.Equal(t, 1, seconds, "retry after, at the beginning of a downtime")
		open()
		require.NoError(t, c.Wait(t.Context()))
	})
}

// Wait ends with its context and with the cache.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newCold(t, newStore())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		assert.ErrorIs(t, c.Wait(ctx), context.DeadlineExceeded)
		ended := make(chan error, 1)
		go func() { ended <- c.Wait(t.Context()) }()
		synctest.Wait()
		c.Stop()
		assert.Error(t, <-ended, "Wait has not failed when the cache was stopped")
		assert.Error(t, c.Wait(t.Context()), "Wait does not fail after the cache was stopped")
	})
}
