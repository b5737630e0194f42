// SPDX-License-Identifier: Apache-2.0

package informer_test

import (
	"bytes"
	"context"
	"flag"
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
	"k8s.io/klog/v2"

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

// An object that leaves the selection is deleted, in its last selected state.
func TestInformerSelects(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		put(store, poddata.Pod("a/one"))
		i := informer.New(c, 0, nil, informer.WithTweak(func(o *metav1.ListOptions) { o.LabelSelector = "app=web" }))
		h := handled(t, i)
		defer run(t, i.RunWithContext)()
		elapse(time.Second)
		h.expect(t)
		put(store, poddata.Pod("a/one", "app=web"))
		put(store, poddata.Pod("a/one", "app=web", "n=2"))
		put(store, poddata.Pod("a/one", "app=db"))
		elapse(time.Second)
		h.expect(t, "add a/one@3 initial=false", "update a/one@3 to a/one@4", "delete a/one@5")
	})
}

// A namespace does not include another whose name begins alike.
func TestInformerInNamespace(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		put(store, poddata.Pod("ns1/one"))
		put(store, poddata.Pod("ns11/one"))
		i := informer.New(c, 0, nil, informer.InNamespace("ns1"))
		defer run(t, i.RunWithContext)()
		elapse(time.Second)
		put(store, poddata.Pod("ns11/two"))
		put(store, poddata.Pod("ns1/two"))
		put(store, poddata.Pod("ns/two"))
		elapse(time.Second)
		assert.Equal(t, "ns1/one@2 ns1/two@5", stored(i.GetStore()))
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

func TestInformerResyncs(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		put(store, poddata.Pod("a/one"))
		i := informer.New(c, time.Minute, nil)
		h := handled(t, i)
		defer run(t, i.RunWithContext)()
		elapse(70 * time.Second)
		h.expect(t, "add a/one@2 initial=true", "update a/one@2 to a/one@2")
	})
}

// The errors of an informer name the resource, not a Go type.
func TestInformerSaysWhatItIsOf(t *testing.T) {
	store := newStore()
	c := start(t, store)
	i := informer.New(c, 0, nil, informer.InNamespace("not/one"))
	failed := make(chan string, 100)
	require.NoError(t, i.SetWatchErrorHandlerWithContext(func(_ context.Context, r *cache.Reflector, err error) {
		failed <- fmt.Sprintf("%s: %v", r.TypeDescription(), err)
	}))
	defer run(t, i.RunWithContext)()
	want := `pods: failed to list pods: informer.InNamespace is "not/one": not a valid name of a namespace: may not contain '/'`
	select {
	case got := <-failed:
		assert.Equal(t, want, got)
	case <-time.After(patience):
		assert.Fail(t, "the informer does not fail")
	}
}

// So do the traces of slow handlers.
func TestInformerTracesWhatItIsOf(t *testing.T) {
	var log bytes.Buffer
	flags := flag.NewFlagSet("klog", flag.PanicOnError)
	klog.InitFlags(flags)
	set := func(flag, value string) {
		require.NoError(t, flags.Set(flag, value))
	}
	set("v", "2")
	set("logtostderr", "false")
	set("alsologtostderr", "false")
	klog.SetOutput(&log)
	defer set("logtostderr", "true")
	defer set("v", "0")
	inBubble(t, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		slow := func(any) ([]string, error) {
			<-time.After(time.Second)
			return nil, nil
		}
		defer run(t, informer.New(c, 0, cache.Indexers{"slow": slow}).RunWithContext)()
		elapse(time.Second)
		for i := range 2000 { // more than a batch
			put(store, poddata.Pod(fmt.Sprintf("a/%d", i)))
		}
		elapse(time.Hour)
	})
	klog.Flush()
	assert.Contains(t, log.String(), `Resource:/, Resource=pods`)
}
