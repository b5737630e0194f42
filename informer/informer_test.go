// SPDX-License-Identifier: Apache-2.0

package informer_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/informer"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// told are the calls of a handler, as "add ns/name@rv".
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
	if !slices.Equal(h.lines, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(h.lines, "\n"), strings.Join(want, "\n"))
	}
	h.lines = nil
}

// handled adds a handler that is told everything.
func handled(t *testing.T, i cache.SharedIndexInformer) *told {
	t.Helper()
	h := &told{}
	if _, err := i.AddEventHandler(h); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestInformer(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		put(store, poddata.Pod("a/one"))
		i := informer.New(c, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		h := handled(t, i)
		stop := run(t, i.RunWithContext)
		elapse(time.Second)
		if !i.HasSynced() {
			t.Error("it is not synced")
		}
		h.expect(t, "add a/one@2 initial=true")

		put(store, poddata.Pod("b/two"))
		put(store, poddata.Pod("a/one", "app=web"))
		store.Remove("/pods/b/two")
		store.Remove("/pods/a/one")
		put(store, poddata.Pod("a/one"))
		elapse(time.Second)
		h.expect(t, "add b/two@3 initial=false", "update a/one@2 to a/one@4", "delete b/two@5", "delete a/one@6", "add a/one@7 initial=false")
		if got := i.LastSyncResourceVersion(); got != "7" {
			t.Errorf("it is at %s", got)
		}
		late := handled(t, i)
		late.expect(t, "add a/one@7 initial=true")
		in, err := i.GetIndexer().ByIndex(cache.NamespaceIndex, "a")
		if err != nil || len(in) != 1 {
			t.Errorf("namespace a has %v, %v", in, err)
		}
		stop()
		if !i.IsStopped() {
			t.Error("it is not stopped")
		}
		synctest.Wait()
		if got := c.Status().Watchers; len(got) != 0 {
			t.Errorf("it still watches: %+v", got)
		}
	})
}

// What leaves the selection is deleted, in the last state that was in it.
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

// A namespace is not another that begins alike.
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
		if got := stored(i.GetStore()); got != "ns1/one@2 ns1/two@5" {
			t.Errorf("got %q", got)
		}
	})
}

// Informers of one cache, its lists, and the cache itself have nothing in
// common that one of them could write to.
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
						if !ok || err != nil {
							t.Fatalf("%s: %v, %v", key, ok, err)
						}
						pod := object.(*example.Pod)
						if pod.Labels["app"] != "web" {
							t.Errorf("%s: someone else has written %v", key, pod.Labels)
						}
						pod.Labels["app"] = "mine"
					}
				}
				if got := list(t, informer.ListerWatcher(c), metav1.ListOptions{LabelSelector: "app=web"}); got != "a/one a/two@3" {
					t.Errorf("the cache selects %q", got)
				}
				object, err := informer.ListerWatcher(c).ListWithContext(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				for _, pod := range object.(*example.PodList).Items {
					if pod.Labels["app"] != "web" {
						t.Errorf("the cache has %v", pod.Labels)
					}
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
		if err := informer.New(c, 0, indexers).AddIndexers(cache.Indexers{"mine": cache.MetaNamespaceIndexFunc}); err != nil {
			t.Error(err)
		}
	}
	if len(indexers) != 1 {
		t.Errorf("the caller has %d indexers now", len(indexers))
	}
	if err := informer.New(c, 0, nil).AddIndexers(indexers); err != nil {
		t.Error(err)
	}
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

// The resource, not a Go type, is what an informer that fails speaks of.
func TestInformerSaysWhatItIsOf(t *testing.T) {
	store := newStore()
	c := start(t, store)
	i := informer.New(c, 0, nil, informer.InNamespace("not/one"))
	failed := make(chan string, 100)
	if err := i.SetWatchErrorHandlerWithContext(func(_ context.Context, r *cache.Reflector, err error) {
		failed <- fmt.Sprintf("%s: %v", r.TypeDescription(), err)
	}); err != nil {
		t.Fatal(err)
	}
	defer run(t, i.RunWithContext)()
	want := `pods: failed to list pods: informer.InNamespace is "not/one": it is no name of a namespace: may not contain '/'`
	select {
	case got := <-failed:
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	case <-time.After(patience):
		t.Error("it does not fail")
	}
}

// So does the trace of one that takes long.
func TestInformerTracesWhatItIsOf(t *testing.T) {
	var log bytes.Buffer
	flags := flag.NewFlagSet("klog", flag.PanicOnError)
	klog.InitFlags(flags)
	set := func(flag, value string) {
		if err := flags.Set(flag, value); err != nil {
			t.Fatal(err)
		}
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
	if got := log.String(); !strings.Contains(got, `Resource:/, Resource=pods`) {
		t.Errorf("the log is %q", got)
	}
}
