// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// client-go's Reflector, when its watch-list ends before its first event, goes on by how
// the watch ends. After a 429 it asks for the same again. After "expired" and "too
// large" it asks for the most recent state. Anything else makes it list, which a busy
// server should be spared.
func TestWhatClientGoDoesWithAStatus(t *testing.T) {
	for name, tc := range map[string]struct {
		err   *apierrors.StatusError
		event bool // as an ERROR event, not as the answer to the request
		lists bool
	}{
		"429":                 {apierrors.NewTooManyRequests("later", 1), false, false},
		"429 as an event":     {apierrors.NewTooManyRequests("later", 1), true, false},
		"504":                 {apierrors.NewTimeoutError("slow", 1), false, true},
		"504 as an event":     {apierrors.NewTimeoutError("slow", 1), true, true},
		"500":                 {apierrors.NewInternalError(errors.New("no")), false, true},
		"500 as an event":     {apierrors.NewInternalError(errors.New("no")), true, true},
		"503":                 {apierrors.NewServiceUnavailable("no"), false, true},
		"too large, an event": {storage.NewTooLargeResourceVersionError(9, 1, 1).(*apierrors.StatusError), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var requests []string
				lw := &cache.ListWatch{
					ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
						requests = append(requests, "list")
						return &example.PodList{}, nil
					},
					WatchFuncWithContext: func(_ context.Context, options metav1.ListOptions) (watch.Interface, error) {
						requests = append(requests, "watch")
						switch {
						case len(requests) > 1:
							return watch.NewFake(), nil
						case tc.event:
							w := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 1})
							status := tc.err.Status()
							w.Error(&status)
							return w, nil
						}
						return nil, tc.err
					},
				}
				r := cache.NewReflector(lw, &example.Pod{}, cache.NewStore(cache.MetaNamespaceKeyFunc), 0)
				go r.Run(ctx.Done())
				elapse(20 * time.Second)
				synctest.Wait()
				require.GreaterOrEqual(t, len(requests), 2)
				assert.Equal(t, tc.lists, requests[1] == "list", "%q", requests)
				cancel()
				synctest.Wait()
			})
		})
	}
}

// REGRESSIONS 156: a watch from the most recent state, while storage is silent for
// longer than the cache waits, is refused with 429 and a Retry-After, and never ends
// with an ERROR event before its first event.
func TestWatchesWhileStorageIsSilent(t *testing.T) {
	no := false
	for name, change := range map[string]func(*storage.ListOptions){
		"a watch-list":              streaming,
		"a watch with its state":    withBookmarks,
		"a watch without its state": func(o *storage.ListOptions) { o.SendInitialEvents = &no },
		"a watch-list not older":    func(o *storage.ListOptions) { streaming(o); o.ResourceVersion = "3" },
	} {
		for fault, hit := range map[string]func(*memstore.Store) (release func()){
			"silent": func(store *memstore.Store) func() {
				release, back := store.Hold(), takeAway(store, false)
				return func() { release(); back() }
			},
			"refuses": func(store *memstore.Store) func() {
				store.Fail("version", errors.New("no"))
				store.BreakWatches(apierrors.NewServiceUnavailable("no"))
				store.Fail("watch", errors.New("no"))
				return func() { store.Fail("version", nil); store.Fail("watch", nil) }
			},
		} {
			t.Run(name+"/"+fault, func(t *testing.T) {
				inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
					release := hit(store)
					put(store, poddata.Pod("a/two"))
					elapse(time.Second)
					goList(t.Context(), c, "") // somebody else's, which shows that storage is silent
					elapse(30 * time.Second)
					opts := everything("")
					change(&opts)
					w, err := c.Watch(t.Context(), "/pods/", opts)
					code, seconds := retryAfter(err)
					require.EqualValues(t, http.StatusTooManyRequests, code, "a watch: %v, %v", w, err)
					assert.NotZero(t, seconds)
					release()
					elapse(10 * time.Second)
					w, err = c.Watch(t.Context(), "/pods/", opts)
					require.NoError(t, err)
					w.Stop()
				}, func(config *cacher.Config) { config.ConsistencyCheckInterval = -1 })
			})
		}
	}
}
