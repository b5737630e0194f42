// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// A watch is starting until it has its initial events, then live; parked when its
// client is slow, with its lag in events and seconds; and among the ended ones,
// with its reason, when it is over.
func TestStatusFollowsAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(poddata.Pod("a/one"), poddata.Pod("a/two"))
		c := start(t, store, func(config *cacher.Config) { config.WatchBuffer, config.DispatchBudget = 1, -1 })
		w, err := c.Watch(cacher.WithClient(t.Context(), status.Client{User: "ada"}), "/pods/", everything("0"))
		require.NoError(t, err)
		synctest.Wait()
		described := func() status.Watcher {
			t.Helper()
			all := c.Status().Watchers
			require.Len(t, all, 1)
			return all[0]
		}
		got := described()
		require.Equal(t, status.Starting, got.State, "one of two initial events is in the channel")
		require.Equal(t, uint64(1), got.Delivered)
		require.Equal(t, status.Counts{Starting: 1}, c.Status().Watches)
		<-w.ResultChan()
		<-w.ResultChan()
		synctest.Wait()
		got = described()
		require.Equal(t, status.Live, got.State)
		require.Equal(t, uint64(2), got.Delivered)
		require.Equal(t, status.Counts{Live: 1}, c.Status().Watches)

		for i := range 5 { // one for the channel, and one each second from then on
			put(store, poddata.Pod(fmt.Sprintf("a/more-%d", i)))
			elapse(time.Second)
			synctest.Wait()
		}
		got = described()
		require.Equal(t, status.Parked, got.State)
		require.True(t, got.Parked)
		require.Equal(t, uint64(4), got.Lag)
		require.InDelta(t, 4, got.LagSeconds, 0.1)
		require.Equal(t, 1, got.Queued)
		require.Equal(t, 1, got.Capacity)
		require.Equal(t, uint64(3), got.Delivered)
		require.Positive(t, got.HeldBytes)
		counts := c.Status().Watches
		require.Equal(t, 1, counts.Parked)
		require.Equal(t, uint64(4), counts.WorstLag)
		require.InDelta(t, 4, counts.WorstLagSeconds, 0.1)

		<-w.ResultChan() // one event further
		synctest.Wait()
		require.Equal(t, uint64(3), described().Lag)
		for range 4 {
			<-w.ResultChan()
		}
		synctest.Wait()
		got = described()
		require.Equal(t, status.Live, got.State)
		require.Zero(t, got.Lag)
		require.Equal(t, uint64(7), got.Delivered)

		w.Stop()
		synctest.Wait()
		require.Empty(t, c.Status().Watchers)
		ended := c.Status().Ended
		require.Len(t, ended, 1)
		require.Equal(t, "stopped", ended[0].Reason)
		require.Equal(t, "ada", ended[0].Client.User)
		require.Equal(t, uint64(7), ended[0].Delivered)
		require.Equal(t, 5*time.Second, ended[0].Ended.Sub(ended[0].Started))
		c.Stop()
	})
}

// untilDeadline is a context that has a deadline, but whose timer has not fired yet:
// the server's own timer was faster.
type untilDeadline struct {
	context.Context
	deadline time.Time
}

func (c untilDeadline) Deadline() (time.Time, bool) { return c.deadline, true }

// A watch whose time is over counts as ended by its deadline, also when the server
// stops it before its context ends. One that is stopped sooner counts as stopped.
func TestStatusTellsDeadlinesFromStops(t *testing.T) {
	for reason, after := range map[string]time.Duration{"stopped": 9 * time.Second, "deadline": 10 * time.Second} {
		t.Run(reason, func(t *testing.T) {
			inBubble(t, noPods, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) {
				ctx := untilDeadline{t.Context(), time.Now().Add(10 * time.Second)}
				w, err := c.Watch(ctx, "/pods/", everything("0"))
				require.NoError(t, err)
				elapse(after)
				w.Stop()
				ended := c.Status().Ended
				require.Len(t, ended, 1)
				require.Equal(t, reason, ended[0].Reason, "the reason of a watch that is stopped after %v of 10 s", after)
			})
		})
	}
}

// A page has its part of the watchers, which name their clients: what the server knows of
// them, or the user of the request. cacher/internal/dispatch tests the orders.
func TestStatusPages(t *testing.T) {
	c := start(t, newStore())
	known := status.Client{User: "ada", UserAgent: "informer/1", Address: "192.0.2.1:4711"}
	asUser := request.WithUser(t.Context(), &user.DefaultInfo{Name: "grace"})
	for _, ctx := range []context.Context{t.Context(), asUser, cacher.WithClient(asUser, known)} {
		w, err := c.Watch(ctx, "/pods/", everything("0"))
		require.NoError(t, err)
		t.Cleanup(w.Stop)
	}
	page, err := c.StatusPage(status.Query{Sort: "user", Reverse: true, Limit: 1})
	require.NoError(t, err)
	require.Len(t, page.Watchers, 1)
	require.Equal(t, "grace", page.Watchers[0].Client.User)
	page, err = c.StatusPage(status.Query{Sort: "age", Limit: 10})
	require.NoError(t, err)
	var clients []status.Client
	for _, w := range page.Watchers {
		clients = append(clients, w.Client)
	}
	require.ElementsMatch(t, []status.Client{known, {User: "grace"}, {}}, clients)
	_, err = c.StatusPage(status.Query{Sort: "beauty"})
	require.ErrorContains(t, err, `Sort is "beauty"`)
	_, err = c.StatusPage(status.Query{Offset: -1})
	require.ErrorContains(t, err, "Offset is -1")
}

// The errors of a cache are kept, the latest first; the same one is counted.
func TestStatusKeepsErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		store.Fail("watch", errors.New("etcdserver: no leader"))
		store.Fail("list", errors.New("etcdserver: no leader"))
		c := newCache(t, store)
		elapse(time.Minute)
		s := c.Status()
		require.NotEmpty(t, s.NotReady)
		require.Equal(t, *s.LastError, s.Errors[0])
		require.Greater(t, s.LastError.Times, 1)
		require.NotContains(t, s.LastError.Summary, "no leader")
		require.Contains(t, s.LastError.Message, "no leader")
		for i := range 40 {
			store.Fail("watch", fmt.Errorf("etcdserver: reason %d", i))
			store.Fail("list", fmt.Errorf("etcdserver: reason %d", i))
			elapse(time.Minute)
		}
		s = c.Status()
		require.Len(t, s.Errors, 16)
		require.Contains(t, s.Errors[0].Message, "reason 39")
		require.True(t, slices.IsSortedFunc(s.Errors, func(a, b status.Error) int { return b.Time.Compare(a.Time) }))
		c.Stop()
	})
}

// The storage's version is shown beside the cache's, with its age: from the last
// event or progress, or from the last answer if that was ahead of these.
func TestStatusStorageVersion(t *testing.T) {
	inBubble(t, manyPods, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		expect := func(own, stored uint64, least, most float64) {
			t.Helper()
			s := c.Status()
			require.Equal(t, own, s.ResourceVersion)
			require.Equal(t, stored, s.StorageResourceVersion)
			require.GreaterOrEqual(t, s.StorageAgeSeconds, least)
			require.LessOrEqual(t, s.StorageAgeSeconds, most)
		}
		expect(101, 101, 0, 0.1)
		elapse(10 * time.Second)
		put(store, poddata.Pod("a/pod-00"))
		elapse(4 * time.Second)
		expect(102, 102, 4, 4)
		release := store.Hold()
		put(store, poddata.Pod("a/pod-01"))
		read := goList(t.Context(), c, "")
		elapse(2 * time.Second)
		expect(102, 103, 0, 2) // it is asked again while the read waits
		store.Fail("version", errors.New("etcdserver: no leader"))
		elapse(5 * time.Second)
		expect(102, 103, 4, 7)
		store.Fail("version", nil)
		release()
		<-read.done
		synctest.Wait()
		expect(103, 103, 0, 5)
	})
}
