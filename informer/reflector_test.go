// SPDX-License-Identifier: Apache-2.0

package informer_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/informer"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// reflectInto runs client-go's Reflector into a store.
func reflectInto(t *testing.T, l cache.ListerWatcher, change ...func(*cache.Reflector)) (*cache.Reflector, cache.Store, func()) {
	t.Helper()
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	r := cache.NewReflectorWithOptions(l, poddata.New(), store, cache.ReflectorOptions{
		Backoff: &wait.Backoff{Duration: 10 * time.Millisecond, Factor: 1},
	})
	for _, c := range change {
		c(r)
	}
	return r, store, run(t, r.RunWithContext)
}

func expectRequests(t *testing.T, l *counted, want ...string) {
	t.Helper()
	assert.Equal(t, want, l.requests())
}

// Regression 140: a Reflector that does not stream lists once, at any version: it takes
// a page at resourceVersion 0 for a server without a watch cache.
func TestReflectorListsOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		for i := range 5 {
			put(store, poddata.Pod(fmt.Sprintf("a/%d", i)))
		}
		elapse(time.Second)
		l := &counted{ListWatch: informer.ListerWatcher(c), lists: true}
		r, got, stop := reflectInto(t, l, func(r *cache.Reflector) { r.WatchListPageSize = 2 })
		elapse(time.Second)
		assert.Equal(t, "a/0@2 a/1@3 a/2@4 a/3@5 a/4@6", stored(got))
		assert.Equal(t, "6", r.LastSyncResourceVersion())
		expectRequests(t, l, "list@0 limit=2", "watch@6")
		stop()
	})
}

// Watches end by their TimeoutSeconds, in five to ten minutes, and are resumed
// where they ended, with or without events: the objects are never listed again.
func TestReflectorResumes(t *testing.T) {
	for _, lists := range []bool{false, true} {
		t.Run(fmt.Sprintf("lists: %v", lists), func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				put(store, poddata.Pod("a/one"))
				l := &counted{ListWatch: informer.ListerWatcher(c), lists: lists}
				_, got, stop := reflectInto(t, l)
				elapse(35 * time.Minute)
				for i := range 35 {
					put(store, poddata.Pod("a/two", fmt.Sprintf("n=%d", i)))
					elapse(time.Minute)
				}
				// A watch that has just begun and brings nothing would be taken
				// for one that can't be resumed.
				put(store, poddata.Pod("a/two"))
				synctest.Wait()
				l.breakWatch()
				last := put(store, poddata.Pod("a/two"))
				elapse(time.Minute)
				assert.Equal(t, fmt.Sprintf("a/one@2 a/two@%d", last), stored(got))
				first := "stream@"
				if lists {
					first = "list@0 limit=500"
				}
				requests := l.requests()
				assert.Equal(t, first, requests[0])
				assert.GreaterOrEqual(t, len(requests), 8, "got %q", requests)
				for _, request := range requests[1:] {
					assert.True(t, strings.HasPrefix(request, "watch@"), "got %q", requests)
				}
				stop()
			})
		})
	}
}

// A watch that can't be resumed because the window no longer has the version
// makes the Reflector list, or stream, again; objects that were deleted
// meanwhile are removed.
func TestReflectorListsAnewAfter410(t *testing.T) {
	for _, lists := range []bool{false, true} {
		t.Run(fmt.Sprintf("lists: %v", lists), func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				put(store, poddata.Pod("a/one"))
				put(store, poddata.Pod("a/two"))
				elapse(time.Second)
				l := &paused{counted: &counted{ListWatch: informer.ListerWatcher(c), lists: lists}, resume: make(chan struct{})}
				_, got, stop := reflectInto(t, l)
				elapse(time.Minute)
				l.breakWatch()
				store.Remove("/pods/a/one")
				for i := range 1000 {
					put(store, poddata.Pod("a/two", fmt.Sprintf("n=%d", i)))
				}
				elapse(10 * time.Second)
				close(l.resume)
				elapse(10 * time.Second)
				assert.Equal(t, "a/two@1004", stored(got))
				if lists {
					expectRequests(t, l.counted, "list@0 limit=500", "watch@3", "watch@3", "list@3 limit=0", "watch@1004")
				} else {
					expectRequests(t, l.counted, "stream@", "watch@3", "stream@3")
				}
				stop()
			}, func(config *cacher.Config) { config.EventsHistoryWindow = time.Second })
		})
	}
}

// paused holds back every watch that resumes after the first, until resume is
// closed.
type paused struct {
	*counted
	opened atomic.Bool
	resume chan struct{}
}

func (p *paused) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if p.opened.Swap(true) {
		<-p.resume
	}
	return p.counted.WatchWithContext(ctx, o)
}
