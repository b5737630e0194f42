// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/storage"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// dropping takes requests for progress, as etcd's grpc-proxy does, and answers none
// while drops is true.
type dropping struct {
	*memstore.Store
	drops atomic.Bool
}

func (d *dropping) RequestWatchProgress(ctx context.Context) error {
	if d.drops.Load() {
		return nil
	}
	return d.Store.RequestWatchProgress(ctx)
}

// REGRESSIONS 143: a storage that answers requests and never reports progress serves
// consistent reads itself. Its watch stays open, nobody lists again, and the log says so
// once, with the remedy. Once it reports, the cache serves them.
func TestStorageThatFallsSilent(t *testing.T) {
	for _, after := range []time.Duration{0, time.Minute} { // from the start on, or later
		t.Run(after.String(), func(t *testing.T) {
			text := logged(t, func() {
				store := &dropping{}
				inBubble(t, func() *memstore.Store { store.Store = newStore(poddata.Pod("a/one")); return store.Store }, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) {
					elapse(after)
					w := watchPods(t, c, "/pods/", "2", withBookmarks)
					store.drops.Store(true)
					store.Touch()
					first := goList(t.Context(), c, "")
					elapse(4 * time.Second)
					require.False(t, first.under(), "the read that finds out has an answer")
					watches := store.Requests()["watch"]
					for range 300 {
						store.Touch()
						began := time.Now()
						list(t, c, "/pods/", "")
						require.NoError(t, c.Get(t.Context(), "/pods/a/one", storage.GetOptions{}, poddata.New()))
						require.Zero(t, time.Since(began), "storage answers at once")
						elapse(time.Second)
					}
					more := store.Requests()["watch"] - watches
					assert.LessOrEqual(t, more, 7, "%d tries in five minutes", more)
					put(store.Store, poddata.Pod("a/two"))
					synctest.Wait()
					assert.Contains(t, strings.Join(receivedAll(w), " "), "ADDED a/two@", "the watch has lived on")

					store.drops.Store(false)
					elapse(6 * time.Minute)
					lists := store.Requests()["list"]
					store.Touch()
					list(t, c, "/pods/", "")
					assert.Equal(t, lists, store.Requests()["list"], "the cache serves a consistent list")
				}, func(config *cacher.Config) { config.Storage, config.ConsistencyCheckInterval = store, -1 })
			})
			assert.Len(t, linesAbout(text, "does not report the progress of its watch"), 1, text)
			assert.Contains(t, text, "grpc-proxy")
			assert.Contains(t, text, "reports progress again")
		})
	}
}

// REGRESSIONS 150: a storage that is not etcd's own reports no progress unless it says so,
// whatever the process's etcd does. Each consistent read is one of storage.
func TestStorageThatSaysNothingOfProgress(t *testing.T) {
	checker := etcdfeature.DefaultFeatureSupportChecker
	etcdfeature.DefaultFeatureSupportChecker = progressSupported{checker}
	t.Cleanup(func() { etcdfeature.DefaultFeatureSupportChecker = checker })
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		before := store.Requests()
		for range 10 {
			store.Touch()
			began := time.Now()
			list(t, c, "/pods/", "")
			require.NoError(t, c.Get(t.Context(), "/pods/a/one", storage.GetOptions{}, poddata.New()))
			require.Zero(t, time.Since(began))
		}
		now := store.Requests()
		assert.Equal(t, 10, now["list"]-before["list"])
		assert.Equal(t, 10, now["get"]-before["get"])
		assert.Equal(t, before["watch"], now["watch"], "the watch is not opened again")
		assert.Equal(t, before["progress"], now["progress"])
	}, func(config *cacher.Config) { config.Storage = claimless{config.Storage} })
}

// claimless is a storage without any method beyond storage.Interface.
type claimless struct{ storage.Interface }

// REGRESSIONS 157: a storage that is slow to answer anything is no reason to open
// another watch.
func TestWatchIsKeptWhileStorageIsSlow(t *testing.T) {
	store := &slowToTell{}
	inBubble(t, func() *memstore.Store { store.Store = newStore(poddata.Pod("a/one")); return store.Store }, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) {
		watches := store.Requests()["watch"]
		store.slow.Store(true)
		for range 60 {
			release := store.Hold()
			store.Touch()
			r := goList(t.Context(), c, "")
			elapse(2 * time.Second)
			release()
			elapse(2 * time.Second)
			require.False(t, r.under())
			require.NoError(t, r.err)
		}
		assert.Equal(t, watches, store.Requests()["watch"], "no other watch is opened")
	}, func(config *cacher.Config) { config.Storage = store })
}

// slowToTell takes 300 ms for each version request.
type slowToTell struct {
	*memstore.Store
	slow atomic.Bool
}

func (s *slowToTell) wait() {
	if s.slow.Load() {
		<-time.After(300 * time.Millisecond)
	}
}

func (s *slowToTell) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	s.wait()
	return s.Store.GetCurrentResourceVersion(ctx)
}

func (s *slowToTell) KeyVersions(ctx context.Context, keys []string) ([]uint64, uint64, error) {
	s.wait()
	return s.Store.KeyVersions(ctx, keys)
}
