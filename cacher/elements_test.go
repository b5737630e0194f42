// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// inPages is a storage that lists in pages.
type inPages struct {
	*memstore.Store
	// page bounds the items of a list, unless it is 0. pages counts the lists, and
	// listed, unless nil, is called after each one.
	page   int64
	pages  atomic.Int32
	listed func(ctx context.Context, page int32) error
	// most is the number of objects that fit a gRPC message, 0 for no limit; refused
	// counts larger lists.
	most    int64
	refused atomic.Int32
}

func (p *inPages) GetList(ctx context.Context, key string, opts storage.ListOptions, into runtime.Object) error {
	if opts.Predicate.Limit > 0 && p.page > 0 {
		opts.Predicate.Limit = min(opts.Predicate.Limit, p.page)
	}
	if p.most > 0 && (opts.Predicate.Limit > p.most || opts.Predicate.Limit == 0) {
		p.refused.Add(1)
		return status.Error(codes.ResourceExhausted, "grpc: received message larger than max (2684354560 vs. 2147483647)")
	}
	if err := p.Store.GetList(ctx, key, opts, into); err != nil {
		return err
	}
	n := p.pages.Add(1)
	if p.listed != nil {
		return p.listed(ctx, n)
	}
	return nil
}

// manyObjects is more Pods than fit one batch.
const manyObjects = 600

func storeOfMany() *memstore.Store {
	store := newStore()
	for i := range manyObjects {
		put(store, poddata.Pod(fmt.Sprintf("ns-%02d/pod-%04d", i%7, i)))
	}
	return store
}

// startFilled starts a cache, and returns when nothing moves any more.
func startFilled(t *testing.T, store *inPages, change func(*cacher.Config)) *cacher.Cacher {
	t.Helper()
	config := podConfig(store)
	config.ConsistencyCheckInterval = -1
	if change != nil {
		change(&config)
	}
	c, err := cacher.New(config)
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	synctest.Wait()
	return c
}

// expectFilled wants the cache to be ready, with what its storage has.
func expectFilled(t *testing.T, store *inPages, c *cacher.Cacher) {
	t.Helper()
	require.True(t, c.Ready(), "the cache is not ready: %v", c.Status().LastError)
	assert.Equal(t, podsOf(t, store.Store), podsOf(t, c))
}

// podsOf returns the Pods of a list at the latest version.
func podsOf(t *testing.T, of storage.Interface) []example.Pod {
	t.Helper()
	var list example.PodList
	require.NoError(t, of.GetList(t.Context(), "/pods/", storage.ListOptions{Predicate: storage.Everything, Recursive: true}, &list))
	return list.Items
}

// Whatever the pages of storage are, the cache has the objects of storage, each once and in
// the order of keys, and follows storage after the list.
func TestStateListedInPages(t *testing.T) {
	for _, page := range []int64{0, 100, 1} {
		t.Run(fmt.Sprint(page), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &inPages{Store: storeOfMany(), page: page}
				c := startFilled(t, store, nil)
				if page > 0 {
					require.EqualValues(t, (manyObjects+page-1)/page, store.pages.Load(), "pages")
				}
				require.Len(t, podsOf(t, c), manyObjects)
				expectFilled(t, store, c)
				w := watchPods(t, c, "/pods/", fmt.Sprint(c.Status().ResourceVersion))
				put(store.Store, poddata.Pod("a/after"))
				expectReceived(t, w, fmt.Sprintf("ADDED a/after@%d", manyObjects+2))
			})
		})
	}
}

// A list whose next page is compacted is listed again in one, at one version.
func TestPageThatIsCompacted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &inPages{Store: storeOfMany(), page: 200}
		store.listed = func(_ context.Context, page int32) error {
			if page == 2 {
				store.Remove("/pods/ns-00/pod-0000") // was on the first page
				store.Compact(put(store.Store, poddata.Pod("a/new")))
			}
			return nil
		}
		c := startFilled(t, store, nil)
		assert.EqualValues(t, 3, store.pages.Load(), "two pages, and all in one")
		expectFilled(t, store, c)
	})
}

// REGRESSIONS 148: pages that are too large for one message are halved, and stay small.
func TestPageThatIsTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &inPages{Store: storeOfMany(), most: 600}
		c := startFilled(t, store, nil)
		expectFilled(t, store, c)
		assert.EqualValues(t, 4, store.refused.Load(), "5000, 2500, 1250 and 625 objects are too many")
		assert.EqualValues(t, 2, store.pages.Load(), "pages of 312 objects")
		store.Compact(put(store.Store, poddata.Pod("a/new")))
		store.BreakWatches(apierrors.NewResourceExpired("compacted"))
		elapse(time.Minute)
		assert.EqualValues(t, 4, store.refused.Load(), "the next list begins with small pages")
	})
}

// REGRESSIONS 148: where one object is too large, the log has the sizes and what to do.
func TestObjectThatIsTooLarge(t *testing.T) {
	text := logged(t, func() {
		synctest.Test(t, func(t *testing.T) {
			store := &inPages{Store: storeOfMany()}
			store.listed = func(context.Context, int32) error {
				return status.Error(codes.ResourceExhausted, "grpc: received message larger than max (5242880 vs. 4194304)")
			}
			c := startFilled(t, store, nil)
			elapse(time.Minute)
			require.False(t, c.Ready())
		})
	})
	assert.Contains(t, text, "received message larger than max (5242880 vs. 4194304)")
	assert.Contains(t, text, "delete large objects, raise the gRPC message limit")
	assert.NotContains(t, text, "look at the storage's health")
	assert.NotContains(t, text, "repair or delete the object")
}

// A list that fails, or an object of which nothing can be made, wherever it is
// among the others, leaves nothing behind for the next list.
func TestStateThatCannotBeTaken(t *testing.T) {
	for _, at := range []int{0, manyObjects / 2, manyObjects - 1} {
		synctest.Test(t, func(t *testing.T) {
			store := &inPages{Store: storeOfMany(), page: 250}
			var mended atomic.Bool
			c := startFilled(t, store, func(config *cacher.Config) {
				config.KeyFunc = func(object runtime.Object) (string, error) {
					if object.(*example.Pod).Name == fmt.Sprintf("pod-%04d", at) && !mended.Load() {
						return "", errors.New("no key today")
					}
					return poddata.Key(object)
				}
			})
			require.False(t, c.Ready())
			require.Contains(t, fmt.Sprint(c.Status().Errors), "could not use the listed objects")
			mended.Store(true)
			elapse(time.Minute)
			expectFilled(t, store, c)
		})
	}
}

// Stop in the middle of a list returns although the storage is slow, and leaves nothing
// behind (synctest would report it).
func TestStopInTheMiddleOfAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &inPages{Store: storeOfMany(), page: 400}
		store.listed = func(ctx context.Context, page int32) error {
			if page < 2 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}
		c := startFilled(t, store, nil)
		require.False(t, c.Ready())
		c.Stop()
		require.False(t, c.Ready())
	})
}

// unstreaming fails if it is asked for a watch that begins with the state.
type unstreaming struct {
	*memstore.Store
	t *testing.T
}

func (s unstreaming) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	assert.Nil(s.t, opts.SendInitialEvents, "storage is asked to stream its state")
	return s.Store.Watch(ctx, key, opts)
}

// REGRESSIONS 71: storage may ignore a request for its initial state, as k8s.io/apiserver's
// does with the feature gate WatchList off. So the cache lists.
func TestStorageIsListed(t *testing.T) {
	store := newStore(poddata.Pod("a/one"))
	expectList(t, start(t, unstreaming{store, t}), "/pods/", "0", "a/one@2")
	assert.Equal(t, 1, store.Requests()["list"], "lists")
}
