// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

var noLeader = apierrors.NewInternalError(errors.New("etcdserver: no leader"))

// REGRESSIONS 85: a storage that has lost its leader ends watches with errors,
// and answers version requests again a moment later. Such an error does not
// mean that storage can't deliver an event: no watch is ended, and nothing is
// listed.
func TestLossOfTheLeaderEndsNoWatch(t *testing.T) {
	for name, failure := range map[string]*apierrors.StatusError{
		"an error that is known":   noLeader,
		"an error that is unknown": apierrors.NewInternalError(errors.New("the quorum is out for lunch")),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				w := watchPods(t, c, "/pods/", "2")
				for range 5 {
					open := store.Gate("version")
					release := store.EndWatches(failure)
					elapse(500 * time.Millisecond)
					// The leader returns while the cache asks whether it has.
					release()
					open()
					elapse(10 * time.Second)
				}
				put(store, poddata.Pod("a/two"))
				expectReceived(t, w, "ADDED a/two@3")
				lists, watches := store.Requests()["list"], store.Watches()
				assert.Zero(t, lists, "lists that storage got")
				assert.Equal(t, 1, watches, "watches that storage has")
			})
		})
	}
}

// A member without a leader refuses watches for as long as it is cut off, while
// the others tell the storage's version.
func TestWatchesOfALeaderlessMember(t *testing.T) {
	for name, failure := range map[string]*apierrors.StatusError{
		"no leader":          noLeader,
		"leader changed":     apierrors.NewInternalError(errors.New("etcdserver: leader changed")),
		"timed out":          apierrors.NewInternalError(errors.New("etcdserver: request timed out, possibly due to connection lost")),
		"unavailable":        apierrors.NewInternalError(errors.New("rpc error: code = Unavailable desc = transport is closing")),
		"deadline exceeded":  apierrors.NewInternalError(errors.New("context deadline exceeded")),
		"503":                apierrors.NewServiceUnavailable("not now"),
		"429":                apierrors.NewTooManyRequests("not so many", 1),
		"timeout":            apierrors.NewTimeoutError("too slow", 1),
		"too many requests":  apierrors.NewInternalError(errors.New("etcdserver: too many requests")),
		"the member stopped": apierrors.NewInternalError(errors.New("etcdserver: server stopped")),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				w := watchPods(t, c, "/pods/", "2")
				release := store.EndWatches(failure)
				put(store, poddata.Pod("a/two"))
				elapse(10 * time.Minute)
				expectReceived(t, w)
				release()
				elapse(10 * time.Second)
				expectReceived(t, w, "ADDED a/two@3")
				lists := store.Requests()["list"]
				assert.Zero(t, lists, "storage got %d lists", lists)
			}, func(config *cacher.Config) { config.ConsistencyCheckInterval = -1 })
		})
	}
}

// Once storage answers again, those who read don't wait for the pause between
// two attempts to open the watch, which has become long by then.
func TestWatchIsOpenedWhenStorageAnswers(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		open := store.Gate("version")
		release := store.EndWatches(noLeader)
		elapse(time.Minute)
		put(store, poddata.Pod("a/two"))
		for range 20 {
			before := store.Requests()["watch"]
			for store.Requests()["watch"] == before {
				elapse(time.Millisecond) // the pause has just begun
			}
			release()
			r := goList(t.Context(), c, "")
			synctest.Wait()
			open()
			elapse(500 * time.Millisecond)
			require.False(t, r.under(), "a consistent LIST waits for the watch to be opened")
			open = store.Gate("version")
			release = store.EndWatches(noLeader)
			elapse(time.Minute)
		}
		release()
		open()
	}, func(config *cacher.Config) { config.ConsistencyCheckInterval = -1 })
}
