// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// gateless takes no notice of being asked for the initial state, and does not
// say so: k8s.io/apiserver's storage with the feature gate WatchList off. The
// storage watches from the beginning of its history then.
type gateless struct {
	*memstore.Store
	asked *atomic.Int32
}

func (g gateless) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if opts.SendInitialEvents != nil {
		g.asked.Add(1)
		opts.SendInitialEvents = nil
		if opts.ResourceVersion == "" {
			rv, err := g.GetCurrentResourceVersion(ctx)
			if err != nil {
				return nil, err
			}
			opts.ResourceVersion = fmt.Sprint(rv)
		}
	}
	return g.Store.Watch(ctx, key, opts)
}

// REGRESSIONS 71: a storage that does not stream its state although it was
// asked to is listed: the cache becomes ready, and is ready sooner the next
// time.
func TestStorageThatDoesNotStreamItsState(t *testing.T) {
	for name, progress := range map[string]bool{"it is silent": false, "it reports progress": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked atomic.Int32
				store := gateless{newStore(poddata.Pod("a/one"), poddata.Pod("a/two")), &asked}
				c, err := cacher.New(podConfig(store))
				require.NoError(t, err)
				defer c.Stop()
				synctest.Wait()
				if progress {
					require.NoError(t, store.RequestWatchProgress(t.Context()))
				} else {
					elapse(10 * time.Second)
				}
				synctest.Wait()
				require.True(t, c.Ready(), "the cache is not ready")
				expectList(t, c, "/pods/", "", "a/one a/two@3")
				w := watchPods(t, c, "/pods/", "3")
				put(store.Store, poddata.Pod("a/three"))
				expectReceived(t, w, "ADDED a/three@4")
				// The storage is not asked again.
				store.Restore(3)
				elapse(2 * time.Minute)
				expectList(t, c, "/pods/", "", "a/one a/two@3")
				assert.EqualValues(t, 1, asked.Load(), "how often the storage was asked for its initial state")
			})
		})
	}
}

// Where Decorator says so, the storage is not asked to stream its state.
func TestListStorage(t *testing.T) {
	for _, list := range []bool{false, true} {
		store := newStore(poddata.Pod("a/one"))
		start(t, store, func(config *cacher.Config) { config.List(list) })
		lists := store.Requests()["list"]
		assert.Equal(t, list, lists > 0, "told to list: %v; the storage was listed %d times", list, lists)
	}
}

// listing is a storage that says that it is faster to list.
type listing struct{ *memstore.Store }

func (listing) PrefersLists() bool { return true }

// Nor is a storage that says that it is faster to list.
func TestStorageThatPrefersLists(t *testing.T) {
	store := newStore(poddata.Pod("a/one"))
	c, err := cacher.New(podConfig(listing{store}))
	require.NoError(t, err)
	defer c.Stop()
	require.NoError(t, c.Wait(t.Context()))
	assert.Equal(t, 1, store.Requests()["list"], "lists")
	expectList(t, c, "/pods/", "0", "a/one@2")
}

// The decorator reads the feature gate.
func TestDecoratorReadsWatchListGate(t *testing.T) {
	for _, tc := range []struct {
		set     func(t *testing.T)
		enabled bool
	}{
		{func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.WatchList, true)
		}, true},
		{func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.WatchList, false)
		}, false},
		// A server that emulates a version in which the gate was off.
		{func(t *testing.T) {
			featuregatetesting.SetFeatureGateEmulationVersionDuringTest(t, utilfeature.DefaultFeatureGate, version.MustParse("1.31"))
		}, false},
	} {
		tc.set(t)
		enabled := tc.enabled
		var asked atomic.Int32
		store := gateless{newStore(poddata.Pod("a/one")), &asked}
		decorate := cacher.Decorator(cacher.WithRawStorage(func(*storagebackend.ConfigForResource, func() runtime.Object,
			func() runtime.Object, string) (storage.Interface, factory.DestroyFunc, error) {
			return store, func() {}, nil
		}))
		config := &storagebackend.ConfigForResource{GroupResource: poddata.Resource}
		config.Codec = poddata.Codec()
		_, destroy, err := decorate(config, poddata.Prefix, poddata.Key, poddata.New, poddata.NewList, poddata.Attrs, nil, nil)
		require.NoError(t, err)
		until(t, "the storage is asked for its state", func() bool { return asked.Load() > 0 || store.Requests()["list"] > 0 })
		n := asked.Load()
		assert.Equal(t, enabled, n > 0, "with the feature gate %v the storage was asked to stream its state %d times", enabled, n)
		destroy()
	}
}
