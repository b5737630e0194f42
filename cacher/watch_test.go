// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// REGRESSIONS 4 and 5: events that come while initial events are sent follow
// them, once each, and none goes backwards.
func TestEventsDuringInitialEvents(t *testing.T) {
	const pods, watchers = 300, 20
	store := newStore()
	for i := range pods {
		put(store, poddata.Pod(fmt.Sprintf("a/pod-%d", i)))
	}
	c := start(t, store)
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				put(store, poddata.Pod(fmt.Sprintf("a/pod-%d", i%pods)))
			}
		}
	})
	var readers sync.WaitGroup
	for range watchers {
		readers.Go(func() {
			w, err := c.Watch(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true})
			if !assert.NoError(t, err) {
				return
			}
			defer w.Stop()
			highest := uint64(0)
			for range pods { // initial events, in the order of keys
				r := &counter{Interface: w}
				r.take(<-w.ResultChan(), true)
				highest = max(highest, r.last)
				if !assert.NoError(t, r.err) {
					return
				}
			}
			// From the version of the snapshot on without a gap: the first
			// event that follows may be any above it, so the highest initial
			// one is the least it can be.
			r := &counter{Interface: w}
			for range 500 {
				r.take(<-w.ResultChan(), true)
				if !assert.NoError(t, r.err, "after initial events up to %d", highest) || !assert.Greater(t, r.last, highest, "the first event after the initial events") {
					return
				}
			}
		})
	}
	readers.Wait()
	close(stop)
	writer.Wait()
}

// REGRESSIONS 24: what one watcher does to its object reaches no other.
func TestMutationsDoNotLeak(t *testing.T) {
	store := newStore(poddata.Pod("a/one", "x=y"))
	c := start(t, store)
	vandal, victim := watchPods(t, c, "/pods/", "0"), watchPods(t, c, "/pods/", "0")
	for range 2 {
		event := <-vandal.ResultChan()
		object := event.Object.(runtime.CacheableObject).GetObject().(*example.Pod)
		object.Labels["x"] = "ruined"
		event.Object.GetObjectKind().SetGroupVersionKind(example.SchemeGroupVersion.WithKind("Ruin"))
		metaOf(t, event.Object).SetName("ruined")
		metaOf(t, event.Object).GetLabels()["x"] = "ruined"

		got := <-victim.ResultChan()
		pod := got.Object.(runtime.CacheableObject).GetObject().(*example.Pod)
		assert.Equal(t, "one", pod.Name, "the name that the victim got")
		assert.Equal(t, "y", pod.Labels["x"], "the label that the victim got")
		assert.Empty(t, pod.Kind, "the kind that the victim got")
		put(store, poddata.Pod("a/one", "x=y"))
	}
	_, pods := list(t, c, "/pods/", "0")
	assert.Equal(t, "y", pods.Items[0].Labels["x"], "the cache's own object was changed: %v", pods.Items[0])
}

func TestWatchBadInput(t *testing.T) {
	c := start(t, newStore())
	for _, test := range []struct{ key, rv string }{
		{"/pods/../x", "0"}, {"/other/", "0"}, {"", "0"}, {"/pods/", "no-number"}, {"/pods/", "-1"},
	} {
		w, err := c.Watch(context.Background(), test.key, storage.ListOptions{ResourceVersion: test.rv, Predicate: storage.Everything, Recursive: true})
		if !assert.Error(t, err, "key %q at %q", test.key, test.rv) {
			w.Stop()
		}
	}
}

// Regression 141: the client of a watch whose time is over before it begins learns why
// nothing comes.
func TestWatchWhoseTimeIsOver(t *testing.T) {
	c := start(t, newStore(poddata.Pod("a/one")))
	for _, rv := range []string{"", "0", "2"} {
		ctx, cancel := context.WithTimeout(t.Context(), -time.Second)
		_, err := c.Watch(ctx, "/pods/", everything(rv))
		cancel()
		require.Error(t, err, rv)
		assert.True(t, apierrors.IsTimeout(err), "at %q: got %v", rv, err)
		assert.ErrorContains(t, err, "timeoutSeconds")
	}
}

// REGRESSIONS 64: while servers restart one after the other, the client of a
// quiet resource keeps a position that the next server knows: bookmarks bring
// it past the list that the next server has begun with.
func TestRollingRestartOfAQuietResource(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		position, servers := "2", []*cacher.Cacher{c}
		for range 3 {
			w := watchPods(t, servers[len(servers)-1], "/pods/", position, withBookmarks)
			for range 50 {
				store.Touch()
			}
			servers = append(servers, start(t, store)) // another one restarts
			store.Touch()
			require.NoError(t, store.RequestWatchProgress(t.Context())) // as etcd reports by itself now and then
			elapse(cacher.DefaultBookmarkInterval + 2*time.Second)
			lines := received(w)
			require.NotEmpty(t, lines, "no bookmark comes")
			_, err := fmt.Sscanf(lines[len(lines)-1], "BOOKMARK@%s", &position)
			require.NoError(t, err, "got %q", lines)
			servers[len(servers)-2].Stop()
		}
		w := watchPods(t, servers[len(servers)-1], "/pods/", position)
		last := put(store, poddata.Pod("a/two"))
		expectReceived(t, w, fmt.Sprintf("ADDED a/two@%d", last))
		servers[len(servers)-1].Stop()
	})
}

// Regression 75: watches that are opened in quick succession, while events
// come, each get every event after their start, once and in order.
func TestWatchesOpenedInQuickSuccession(t *testing.T) {
	const events = 40
	inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		opened := make(map[int][]*podWatch) // by the version that they begin after
		for at := 1; at <= events; at++ {
			for range 3 {
				opened[at] = append(opened[at], watchPods(t, c, "/pods/", fmt.Sprint(at)))
			}
			put(store, poddata.Pod(fmt.Sprint("a/", at)))
			if at%10 == 0 {
				synctest.Wait() // so that some are live and others catch up
			}
		}
		for at, watches := range opened {
			for _, w := range watches {
				for rv := at + 1; rv <= events+1; rv++ {
					w.expect(fmt.Sprintf("ADDED a/%d@%d", rv-1, rv))
				}
				synctest.Wait()
				select {
				case event := <-w.ResultChan():
					assert.Fail(t, fmt.Sprintf("the watch from %d got %s at the end", at, line(event)))
				default:
				}
			}
		}
	})
}

// The error that ends watchers is an object of each watcher's own: an API
// server's handlers write the kind into it while they encode it, all at once.
func TestWatchersGetErrorsOfTheirOwn(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		watches := []*podWatch{watchPods(t, c, "/pods/", "2"), watchPods(t, c, "/pods/", "2")}
		synctest.Wait()
		store.Corrupt(apierrors.NewInternalError(errors.New("can't be decoded")))
		put(store, poddata.Pod("a/corrupt"))
		for _, w := range watches {
			event := <-w.ResultChan()
			status, ok := event.Object.(*metav1.Status)
			require.Equal(t, watch.Error, event.Type, "what a watcher got: %v", event.Object)
			require.True(t, ok, "a watcher got a %T", event.Object)
			assert.Empty(t, status.Kind, "the error was encoded by another watcher's handler: %+v", status.TypeMeta)
			status.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Status"})
		}
	})
}

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

// REGRESSIONS 55: watch-lists hold nobody up, however many begin and whether or
// not their clients read: events are applied and reach those who read.
func TestWatchListsHoldUpNobody(t *testing.T) {
	inBubble(t, manyPods, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		live := watchPods(t, c, "/pods/", "101")
		synctest.Wait()
		for i := range 200 {
			watchPods(t, c, "/pods/", "0", streaming)
			rv := put(store, poddata.Pod("b/one"))
			if i == 0 {
				expectReceived(t, live, fmt.Sprintf("ADDED b/one@%d", rv))
				continue
			}
			expectReceived(t, live, fmt.Sprintf("MODIFIED b/one@%d", rv))
		}
		n := len(c.Status().Watchers)
		assert.Equal(t, 201, n, "%d watchers are open", n)
	})
}
