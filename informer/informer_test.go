// SPDX-License-Identifier: Apache-2.0

package informer_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/informer"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// told are the recorded calls of a handler, as "add ns/name@rv".
type told struct {
	mu    sync.Mutex
	lines []string
}

func (h *told) note(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, fmt.Sprintf(format, args...))
}

func (h *told) OnAdd(object any, initial bool) {
	h.note("add %s initial=%v", versioned(object), initial)
}
func (h *told) OnUpdate(before, after any) {
	h.note("update %s to %s", versioned(before), versioned(after))
}
func (h *told) OnDelete(object any) { h.note("delete %s", versioned(object)) }

// versioned is an object as "ns/name@rv".
func versioned(object any) string {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		return "unknown " + versioned(gone.Obj)
	}
	pod := object.(*example.Pod)
	return fmt.Sprintf("%s/%s@%s", pod.Namespace, pod.Name, pod.ResourceVersion)
}

func (h *told) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	assert.Equal(t, want, h.lines)
	h.lines = nil
}

// handled adds a handler that records all its calls.
func handled(t *testing.T, i cache.SharedIndexInformer) *told {
	t.Helper()
	h := &told{}
	_, err := i.AddEventHandler(h)
	require.NoError(t, err)
	return h
}

func TestInformer(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		put(store, poddata.Pod("a/one"))
		i := informer.New(c, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		h := handled(t, i)
		stop := run(t, i.RunWithContext)
		elapse(time.Second)
		assert.True(t, i.HasSynced(), "the informer is not synced")
		h.expect(t, "add a/one@2 initial=true")

		put(store, poddata.Pod("b/two"))
		put(store, poddata.Pod("a/one", "app=web"))
		store.Remove("/pods/b/two")
		store.Remove("/pods/a/one")
		put(store, poddata.Pod("a/one"))
		elapse(time.Second)
		h.expect(t, "add b/two@3 initial=false", "update a/one@2 to a/one@4", "delete b/two@5", "delete a/one@6", "add a/one@7 initial=false")
		assert.Equal(t, "7", i.LastSyncResourceVersion())
		late := handled(t, i)
		late.expect(t, "add a/one@7 initial=true")
		in, err := i.GetIndexer().ByIndex(cache.NamespaceIndex, "a")
		require.NoError(t, err)
		assert.Len(t, in, 1, "the objects of namespace a")
		stop()
		assert.True(t, i.IsStopped(), "the informer is not stopped")
		synctest.Wait()
		assert.Empty(t, c.Status().Watchers, "the informer still watches")
	})
}

// Informers of one cache, its lists, and the cache itself share no memory that
// one of them could write to.
func TestInformersArePrivate(t *testing.T) {
	for _, lists := range []bool{false, true} {
		t.Run(fmt.Sprintf("first a list: %v", lists), func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				put(store, poddata.Pod("a/one", "app=web"))
				var informers []cache.SharedIndexInformer
				for range 2 {
					l := &counted{ListWatch: informer.ListerWatcher(c), lists: lists}
					i := cache.NewSharedIndexInformer(l, poddata.New(), 0, cache.Indexers{})
					informers = append(informers, i)
					defer run(t, i.RunWithContext)()
				}
				elapse(time.Second)
				put(store, poddata.Pod("a/two", "app=web"))
				elapse(time.Second)
				for _, i := range informers {
					for _, key := range []string{"a/one", "a/two"} {
						object, ok, err := i.GetIndexer().GetByKey(key)
						require.NoError(t, err, key)
						require.True(t, ok, "%s is missing", key)
						pod := object.(*example.Pod)
						assert.Equal(t, "web", pod.Labels["app"], "%s: someone else has written %v", key, pod.Labels)
						pod.Labels["app"] = "mine"
					}
				}
				assert.Equal(t, "a/one a/two@3", list(t, informer.ListerWatcher(c), metav1.ListOptions{LabelSelector: "app=web"}), "what the cache selects")
				object, err := informer.ListerWatcher(c).ListWithContext(t.Context(), metav1.ListOptions{})
				require.NoError(t, err)
				for _, pod := range object.(*example.PodList).Items {
					assert.Equal(t, "web", pod.Labels["app"], "the cache has %v", pod.Labels)
				}
			})
		})
	}
}

// The caller's indexers are not written to: two informers may be given the
// same.
func TestInformersOwnTheirIndexers(t *testing.T) {
	c := start(t, newStore())
	indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	for range 2 {
		assert.NoError(t, informer.New(c, 0, indexers).AddIndexers(cache.Indexers{"mine": cache.MetaNamespaceIndexFunc}))
	}
	assert.Len(t, indexers, 1, "the caller's indexers")
	assert.NoError(t, informer.New(c, 0, nil).AddIndexers(indexers))
}
