// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
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
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
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

// bringing is a storage that brings its state in another way.
type bringing struct {
	*memstore.Store
	// stream makes the initial events of a watch from those of the Store, which
	// come in the order of their keys. The last one is the bookmark.
	stream func(initial []watch.Event) []watch.Event
	// page bounds the items of a list, 0: the request does. pages counts the lists,
	// and listed, unless nil, is called after each one.
	page   int64
	pages  atomic.Int32
	listed func(ctx context.Context, page int32) error
	// most is how many objects fit a message of gRPC, 0: all; refused counts the lists
	// of more.
	most    int64
	refused atomic.Int32
}

func (b *bringing) GetList(ctx context.Context, key string, opts storage.ListOptions, into runtime.Object) error {
	if opts.Predicate.Limit > 0 && b.page > 0 {
		opts.Predicate.Limit = min(opts.Predicate.Limit, b.page)
	}
	if b.most > 0 && (opts.Predicate.Limit > b.most || opts.Predicate.Limit == 0) {
		b.refused.Add(1)
		return status.Error(codes.ResourceExhausted, "grpc: received message larger than max (2684354560 vs. 2147483647)")
	}
	if err := b.Store.GetList(ctx, key, opts, into); err != nil {
		return err
	}
	n := b.pages.Add(1)
	if b.listed != nil {
		return b.listed(ctx, n)
	}
	return nil
}

func (b *bringing) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	w, err := b.Store.Watch(ctx, key, opts)
	if err != nil || opts.SendInitialEvents == nil || b.stream == nil {
		return w, err
	}
	var initial []watch.Event
	for event := range w.ResultChan() {
		if initial = append(initial, event); event.Type == watch.Bookmark {
			break
		}
	}
	result := make(chan watch.Event)
	brought := watch.NewProxyWatcher(result)
	go func() {
		defer close(result)
		defer w.Stop()
		send := func(event watch.Event) bool {
			select {
			case result <- event:
				return true
			case <-brought.StopChan():
			case <-ctx.Done():
			}
			return false
		}
		for _, event := range b.stream(initial) {
			if !send(event) {
				return
			}
		}
		for event := range w.ResultChan() {
			if !send(event) {
				return
			}
		}
	}()
	return brought, nil
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
func startFilled(t *testing.T, store *bringing, list bool, change func(*cacher.Config)) *cacher.Cacher {
	t.Helper()
	config := podConfig(store)
	config.ConsistencyCheckInterval = -1
	config.List(list)
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
func expectFilled(t *testing.T, store *bringing, c *cacher.Cacher) {
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

// However storage brings its state, the cache has the objects that storage has,
// each once and in the order of keys, and follows it from there on.
func TestStateBroughtInAnyWay(t *testing.T) {
	shuffled := func(initial []watch.Event) []watch.Event {
		objects := initial[:len(initial)-1]
		rand.Shuffle(len(objects), func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
		return initial
	}
	twice := func(initial []watch.Event) []watch.Event {
		var first []watch.Event
		for _, event := range initial[:len(initial)-1] { // a storage sends no object twice, but another one that is the same
			first = append(first, watch.Event{Type: event.Type, Object: event.Object.DeepCopyObject()})
		}
		return append(first, initial...)
	}
	for name, tc := range map[string]struct {
		list   bool
		page   int64
		stream func([]watch.Event) []watch.Event
	}{
		"streamed":                  {},
		"streamed in another order": {stream: shuffled},
		"streamed twice over":       {stream: twice},
		"listed":                    {list: true},
		"listed in pages":           {list: true, page: 100},
		"listed in pages of one":    {list: true, page: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &bringing{Store: storeOfMany(), page: tc.page, stream: tc.stream}
				c := startFilled(t, store, tc.list, nil)
				if tc.list && tc.page > 0 {
					require.EqualValues(t, (manyObjects+tc.page-1)/tc.page, store.pages.Load(), "pages")
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

// A storage may send changes before it tells the end of its state, as a cache
// does whose state is streamed at a version that it has still to reach.
func TestChangesBeforeTheEndOfTheState(t *testing.T) {
	at := func(typ watch.EventType, name, rv string) watch.Event {
		pod := poddata.Pod(name)
		pod.ResourceVersion = rv
		return watch.Event{Type: typ, Object: pod}
	}
	synctest.Test(t, func(t *testing.T) {
		store := &bringing{Store: newStore(poddata.Pod("a/deleted"), poddata.Pod("a/kept"), poddata.Pod("a/modified"), poddata.Pod("a/recreated"))}
		store.stream = func(initial []watch.Event) []watch.Event {
			end := initial[len(initial)-1]
			bookmark := end.Object.DeepCopyObject()
			if err := store.Versioner().UpdateObject(bookmark, 20); err != nil {
				panic(err)
			}
			if err := storage.AnnotateInitialEventsEndBookmark(bookmark); err != nil {
				panic(err)
			}
			return append(initial[:len(initial)-1],
				at(watch.Deleted, "a/recreated", "10"), at(watch.Modified, "a/modified", "11"), at(watch.Deleted, "a/deleted", "12"),
				at(watch.Added, "a/recreated", "13"), at(watch.Added, "a/added", "14"), at(watch.Added, "a/brief", "15"), at(watch.Deleted, "a/brief", "16"),
				watch.Event{Type: watch.Bookmark, Object: bookmark})
		}
		c := startFilled(t, store, false, nil)
		require.True(t, c.Ready(), "the cache is not ready: %v", c.Status().LastError)
		var list example.PodList
		require.NoError(t, c.GetList(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true}, &list))
		var got []string
		for _, pod := range list.Items {
			got = append(got, pod.Name+"@"+pod.ResourceVersion)
		}
		assert.Equal(t, "added@14 kept@3 modified@11 recreated@13", strings.Join(got, " "))
		assert.Equal(t, "20", list.ResourceVersion)
	})
}

// A list whose next page is compacted is listed again in one, at one version.
func TestPageThatIsCompacted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &bringing{Store: storeOfMany(), page: 200}
		store.listed = func(_ context.Context, page int32) error {
			if page == 2 {
				store.Remove("/pods/ns-00/pod-0000") // was on the first page
				store.Compact(put(store.Store, poddata.Pod("a/new")))
			}
			return nil
		}
		c := startFilled(t, store, true, nil)
		assert.EqualValues(t, 3, store.pages.Load(), "two pages, and all in one")
		expectFilled(t, store, c)
	})
}

// REGRESSIONS 148: pages that are too large for one message are halved, and stay small.
func TestPageThatIsTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &bringing{Store: storeOfMany(), most: 600}
		c := startFilled(t, store, true, nil)
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
			store := &bringing{Store: storeOfMany()}
			store.listed = func(context.Context, int32) error {
				return status.Error(codes.ResourceExhausted, "grpc: received message larger than max (5242880 vs. 4194304)")
			}
			c := startFilled(t, store, true, nil)
			elapse(time.Minute)
			require.False(t, c.Ready())
		})
	})
	assert.Contains(t, text, "received message larger than max (5242880 vs. 4194304)")
	assert.Contains(t, text, "remove large objects, raise the limit of storage")
	assert.NotContains(t, text, "look at the storage's health")
	assert.NotContains(t, text, "repair or delete the object")
}

// A list that fails, or an object of which nothing can be made, wherever it is
// among the others, leaves nothing behind for the next list.
func TestStateThatCannotBeTaken(t *testing.T) {
	for _, list := range []bool{false, true} {
		for _, at := range []int{0, manyObjects / 2, manyObjects - 1} {
			synctest.Test(t, func(t *testing.T) {
				store := &bringing{Store: storeOfMany(), page: 250}
				var mended atomic.Bool
				c := startFilled(t, store, list, func(config *cacher.Config) {
					config.KeyFunc = func(object runtime.Object) (string, error) {
						if object.(*example.Pod).Name == fmt.Sprintf("pod-%04d", at) && !mended.Load() {
							return "", errors.New("no key today")
						}
						return poddata.Key(object)
					}
				})
				require.False(t, c.Ready())
				require.Contains(t, fmt.Sprint(c.Status().Errors), "could not be taken")
				mended.Store(true)
				elapse(time.Minute)
				expectFilled(t, store, c)
			})
		}
	}
}

// Stop in the middle of a list returns although the storage is slow, and nothing
// that was started is left (synctest would say so).
func TestStopInTheMiddleOfAList(t *testing.T) {
	for _, list := range []bool{false, true} {
		t.Run(fmt.Sprintf("list %v", list), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &bringing{Store: storeOfMany(), page: 400}
				store.listed = func(ctx context.Context, page int32) error {
					if page < 2 {
						return nil
					}
					<-ctx.Done()
					return ctx.Err()
				}
				store.stream = func(initial []watch.Event) []watch.Event { return initial[:manyObjects-100] }
				c := startFilled(t, store, list, nil)
				require.False(t, c.Ready())
				c.Stop()
				require.False(t, c.Ready())
			})
		})
	}
}

// A storage that streams its state and then fails, again and again, is listed.
func TestStreamThatFailsBeforeItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &bringing{Store: storeOfMany()}
		status := apierrors.NewInternalError(errors.New("broken")).Status()
		store.stream = func(initial []watch.Event) []watch.Event {
			return append(initial[:manyObjects-1:manyObjects-1], watch.Event{Type: watch.Error, Object: &status}, initial[manyObjects])
		}
		c := startFilled(t, store, false, nil)
		elapse(time.Minute)
		expectFilled(t, store, c)
		assert.Positive(t, store.pages.Load(), "lists")
	})
}

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

// listing is a storage that says that it is faster to list.
type listing struct{ *memstore.Store }

func (listing) PrefersLists() bool { return true }

// A storage is not asked to stream its state where Decorator says so, or the storage that
// it is faster to list.
func TestListStorage(t *testing.T) {
	for _, list := range []bool{false, true} {
		store := newStore(poddata.Pod("a/one"))
		start(t, store, func(config *cacher.Config) { config.List(list) })
		assert.Equal(t, list, store.Requests()["list"] > 0, "whether the storage was listed")
	}
	store := newStore(poddata.Pod("a/one"))
	expectList(t, start(t, listing{store}), "/pods/", "0", "a/one@2")
	assert.Equal(t, 1, store.Requests()["list"], "lists")
}

// The decorator reads the feature gate, which is off in a server that emulates an old version.
func TestDecoratorReadsWatchListGate(t *testing.T) {
	gate := utilfeature.DefaultFeatureGate
	for name, set := range map[string]func(*testing.T){
		"on":  func(t *testing.T) { featuregatetesting.SetFeatureGateDuringTest(t, gate, features.WatchList, true) },
		"off": func(t *testing.T) { featuregatetesting.SetFeatureGateDuringTest(t, gate, features.WatchList, false) },
		"emulated": func(t *testing.T) {
			featuregatetesting.SetFeatureGateEmulationVersionDuringTest(t, gate, version.MustParse("1.31"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			set(t)
			var asked atomic.Int32
			store := gateless{newStore(poddata.Pod("a/one")), &asked}
			_, destroy, err := askedFor(nil).of(cacher.Decorator(cacher.WithRawStorage(func(*storagebackend.ConfigForResource, func() runtime.Object,
				func() runtime.Object, string) (storage.Interface, factory.DestroyFunc, error) {
				return store, func() {}, nil
			})))
			require.NoError(t, err)
			defer destroy()
			until(t, "the storage is asked for its state", func() bool { return asked.Load() > 0 || store.Requests()["list"] > 0 })
			assert.Equal(t, name == "on", asked.Load() > 0, "whether the storage was asked to stream its state")
		})
	}
}
