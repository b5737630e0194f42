// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// REGRESSIONS 128: while the cache is known to have missed events nothing of its
// state reaches a watch: no initial events, no mark of their end, no bookmark, and a
// client that resumes from that state gets a 410. Watches wait for the relist, or get a
// 429.
func TestNoWatchBeginsInADoubt(t *testing.T) {
	type begins struct {
		rv     string
		change func(*storage.ListOptions)
		want   []string // after the relist
	}
	for name, w := range map[string]begins{
		"a watch-list":          {"", streaming, []string{"ADDED a/one@2", "ADDED a/two@3", "BOOKMARK@4 end of initial events"}},
		"a watch-list, any":     {"0", streaming, []string{"ADDED a/one@2", "ADDED a/two@3", "BOOKMARK@4 end of initial events"}},
		"a watch":               {"", withBookmarks, []string{"ADDED a/one@2", "ADDED a/two@3"}},
		"a watch, any":          {"0", withBookmarks, []string{"ADDED a/one@2", "ADDED a/two@3"}},
		"a watch that resumes":  {"3", withBookmarks, []string{"ERROR 410 Expired", "closed"}},
		"one from storage's rv": {"4", withBookmarks, nil},
	} {
		for _, mended := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, mended %v", name, mended), func(t *testing.T) {
				inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
					live := watchPods(t, c, "/pods/", "2", withBookmarks)
					miss(store, func() { put(store, poddata.Pod("a/two")) })
					expectList(t, c, "/pods/", "", "a/one@3") // nobody knows yet
					open := store.Gate("watch")
					defer open()
					elapse(90 * time.Second) // a comparison finds it
					received(live)
					store.Touch()
					if mended {
						time.AfterFunc(time.Second, open)
					}
					var opened *podWatch
					var err error
					done := make(chan struct{})
					go func() {
						defer close(done)
						opts := everything(w.rv)
						w.change(&opts)
						var o watch.Interface
						if o, err = c.Watch(t.Context(), "/pods/", opts); err == nil {
							opened = &podWatch{Interface: o, t: t}
						}
					}()
					elapse(10 * time.Minute)
					<-done
					if !mended {
						code, seconds := retryAfter(err)
						assert.EqualValues(t, http.StatusTooManyRequests, code, "a watch: %v", err)
						assert.NotZero(t, seconds)
						assert.Empty(t, received(live), "a watcher of before got a bookmark")
						return
					}
					require.NoError(t, err)
					defer opened.Stop()
					got := received(opened)
					if len(got) > len(w.want) {
						got = got[:len(w.want)] // bookmarks follow
					}
					assert.ElementsMatch(t, w.want, got)
					assert.Equal(t, []string{"ERROR 410 Expired", "closed"}, received(live), "a watcher of before")
				}, func(config *cacher.Config) { config.ConsistencyCheckInterval = time.Minute })
			})
		}
	}
}

// REGRESSIONS 130: a list at the state's own resourceVersion that differs from it
// shows that events were missed, although no comparison was made: watchers get a 410.
func TestAListAtTheSameVersionShowsAGap(t *testing.T) {
	for _, missed := range []bool{true, false} {
		t.Run(fmt.Sprint(missed), func(t *testing.T) {
			inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				w := watchPods(t, c, "/pods/", "2")
				if missed {
					miss(store, func() { put(store, poddata.Pod("a/two")) })
					expectList(t, c, "/pods/", "", "a/one@3") // nobody knows yet
				}
				store.BreakWatches(apierrors.NewResourceExpired("compacted"))
				elapse(5 * time.Second)
				got := received(w)
				if missed {
					assert.Equal(t, []string{"ERROR 410 Expired", "closed"}, got)
					assert.Contains(t, c.Status().LastError.Summary, "differs from the watch cache")
				} else {
					assert.NotContains(t, got, "ERROR 410 Expired", "a list that agrees is no gap")
				}
			}, func(config *cacher.Config) { config.ConsistencyCheckInterval = -1 })
		})
	}
}

// REGRESSIONS 130: a client that has lost its connection before it has read the 410 comes
// back at the version of the list that has mended the cache, if nothing was written
// meanwhile. It lists, as whoever has that version does for some minutes; a doubt that
// was none costs nobody a list.
func TestNoWatchResumesFromAWrongState(t *testing.T) {
	for _, missed := range []bool{true, false} {
		t.Run(fmt.Sprint(missed), func(t *testing.T) {
			inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				write := func() { put(store, poddata.Pod("a/two")) }
				if missed {
					miss(store, write)
					expectList(t, c, "/pods/", "", "a/one@3") // nobody knows yet
				} else {
					write()
				}
				elapse(90 * time.Second) // a comparison finds it
				expectList(t, c, "/pods/", "", "a/one a/two@3")
				returned := watchPods(t, c, "/pods/", "3")
				if missed {
					expectReceived(t, returned, "ERROR 410 Expired", "closed")
					elapse(5 * time.Minute) // of an idle storage; then they are let alone
					returned = watchPods(t, c, "/pods/", "3")
				}
				put(store, poddata.Pod("a/three"))
				expectReceived(t, returned, "ADDED a/three@4")
			}, func(config *cacher.Config) { config.ConsistencyCheckInterval = time.Minute })
		})
	}
}

// REGRESSIONS 131: what storage does decides whether it can't deliver an event, and
// not what its error says: a plugin that decrypts objects and is away fails with the
// texts of a lost connection. Watchers are told within 30 s, and others refused.
func TestUndeliverableWhateverTheText(t *testing.T) {
	for _, text := range []string{
		"rpc error: code = Unavailable desc = connection error: dial unix /kms.sock: connection refused",
		"rpc error: code = DeadlineExceeded desc = context deadline exceeded",
		"context deadline exceeded",
		"etcdserver: no leader",
		"i/o timeout",
		"the key is gone",
	} {
		for _, idle := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, idle %v", text, idle), func(t *testing.T) {
				inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
					w := watchPods(t, c, "/pods/", "2")
					synctest.Wait()
					release := store.Corrupt(apierrors.NewInternalError(errors.New(text)))
					put(store, poddata.Pod("a/corrupt"))
					for range 30 {
						if !idle {
							put(store, poddata.Pod("a/corrupt"))
						}
						elapse(time.Second)
					}
					expectReceived(t, w, "ERROR 500 InternalError", "closed")
					require.NotNil(t, c.Status().Paused)
					_, err := c.Watch(t.Context(), "/pods/", everything("2"))
					assert.True(t, apierrors.IsTooManyRequests(err), "a new watch: %v", err)
					release()
					elapse(10 * time.Second)
					assert.Nil(t, c.Status().Paused)
					assert.NoError(t, c.GetList(t.Context(), "/pods/", everything(""), &example.PodList{}))
				}, func(config *cacher.Config) { config.ConsistencyCheckInterval = -1 })
			})
		}
	}
}
