// SPDX-License-Identifier: Apache-2.0

//go:build k8s38

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// watchedStore is a storage that records whether watches are to omit previous states, and may
// refuse those.
type watchedStore struct {
	*memstore.Store
	refuses bool

	mu    sync.Mutex
	omits []bool
}

func (s *watchedStore) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	s.omits = append(s.omits, opts.WatchWithoutPrevKV)
	s.mu.Unlock()
	if s.refuses && opts.WatchWithoutPrevKV {
		return nil, apierrors.NewInternalError(errors.New("no function for keys"))
	}
	return s.Store.Watch(ctx, key, opts)
}

// The cache watches its storage without previous states, unless storage refuses that, and a
// DELETED event has the last state of the object in either case.
func TestLastStateIsTheCaches(t *testing.T) {
	for _, refuses := range []bool{false, true} {
		t.Run(fmt.Sprintf("refuses=%t", refuses), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod := poddata.Pod("a/one")
				pod.Labels = map[string]string{"app": "x"}
				store := &watchedStore{Store: newStore(pod), refuses: refuses}
				c := start(t, store, unchecked)
				defer c.Stop()
				all := watchPods(t, c, "/pods/", "2")
				selected := watchPods(t, c, "/pods/", "2", selecting("app=x", ""))
				store.Remove("/pods/a/one")
				synctest.Wait()
				for _, w := range []watch.Interface{all, selected} {
					event := <-w.ResultChan()
					object := event.Object
					if shared, ok := object.(runtime.CacheableObject); ok {
						object = shared.GetObject()
					}
					got := object.(*example.Pod)
					assert.Equal(t, watch.Deleted, event.Type)
					assert.Equal(t, pod.Labels, got.Labels)
					assert.Equal(t, pod.Spec, got.Spec)
					assert.Equal(t, "3", got.ResourceVersion)
				}
				store.Put("/pods/a/one", poddata.Pod("a/one"))
				synctest.Wait()
				expectReceived(t, all, "ADDED a/one@4")

				// A watch that is opened again does as the first one.
				store.BreakWatches(nil)
				synctest.Wait()
				elapse(time.Minute)
				store.Remove("/pods/a/one")
				expectReceived(t, all, "DELETED a/one@5")
				store.mu.Lock()
				defer store.mu.Unlock()
				assert.Equal(t, !refuses, store.omits[len(store.omits)-1])
			})
		})
	}
}

// The deletion of an object that the cache does not have is a gap: the cache lists.
func TestDeletionOfAnUnknownKey(t *testing.T) {
	inBubble(t, onePod, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		synctest.Wait()
		lists := store.Requests()["list"]
		unknown := poddata.Pod("a/two")
		unknown.ResourceVersion = "3"
		store.Inject(watch.Event{Type: watch.Deleted, Object: unknown})
		elapse(time.Minute)
		assert.Equal(t, lists+1, store.Requests()["list"])
		store.Put("/pods/a/three", poddata.Pod("a/three"))
		synctest.Wait()
		expectList(t, c, "/pods/", "0", "a/one a/three@3")
	}, unchecked)
}
