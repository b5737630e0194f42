// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// idleTimeout is that of the caches in these tests.
const idleTimeout = time.Minute

func lazily(c *cacher.Config)   { c.LazyStart = true }
func sleeping(c *cacher.Config) { c.IdleTimeout = idleTimeout }

// newCache makes a cache and does not wait for it.
func newCache(t testing.TB, store storage.Interface, change ...func(*cacher.Config)) *cacher.Cacher {
	t.Helper()
	config := podConfig(store)
	for _, change := range change {
		change(&config)
	}
	c, err := cacher.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return c
}

// asleep lets the cache fall asleep.
func asleep(t *testing.T, c *cacher.Cacher) {
	t.Helper()
	elapse(2*idleTimeout + time.Second)
	if !c.Status().Asleep {
		t.Fatal("the cache is awake")
	}
}

func expectRequests(t *testing.T, store *memstore.Store, want map[string]int) {
	t.Helper()
	if got := store.Requests(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("storage got the requests %v, want %v", got, want)
	}
}

// A lazy cache asks nothing of storage before it is used, is ready all the same,
// and the first to use it are served, not told to come again.
func TestLazyStart(t *testing.T) {
	for name, use := range map[string]func(*testing.T, *cacher.Cacher){
		"LIST": func(t *testing.T, c *cacher.Cacher) { expectList(t, c, "/pods/", "", "a/one@2") },
		"LIST of a version": func(t *testing.T, c *cacher.Cacher) {
			expectList(t, c, "/pods/", "2", "a/one@2", exactly)
		},
		"WATCH": func(t *testing.T, c *cacher.Cacher) { watchPods(t, c, "/pods/", "0").expect("ADDED a/one@2") },
		"Wait": func(t *testing.T, c *cacher.Cacher) {
			if err := c.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				meters, metric := metered(t)
				store := newStore(poddata.Pod("a/one"))
				c := newCache(t, store, lazily, meters)
				elapse(time.Hour)
				expectRequests(t, store, map[string]int{})
				if err := c.ReadinessCheck(); err != nil || !c.Ready() || !c.Status().Asleep || metric("asleep") != 1 {
					t.Errorf("the check says %v, Ready %v, the status %+v", err, c.Ready(), c.Status())
				}
				if stats, err := c.Stats(t.Context()); err != nil || stats.ObjectCount != 1 {
					t.Errorf("before it was used there are %+v objects, %v", stats, err)
				}
				if !c.Status().Asleep {
					t.Error("counting objects woke the cache")
				}
				use(t, c)
				if c.Status().Asleep || metric("asleep") != 0 || metric("woken_up_total") != 1 {
					t.Errorf("asleep is %v, woken up %v times", c.Status().Asleep, metric("woken_up_total"))
				}
				elapse(time.Hour)
				if c.Status().Asleep {
					t.Error("the cache sleeps, without an idle timeout")
				}
				c.Stop()
			})
		})
	}
}

// While a cache that was woken up reads its state, a GET is answered by storage
// and everything else waits for it, but no longer than storage is patient.
func TestWakingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(poddata.Pod("a/one"))
		open := store.Gate("watch")
		c := newCache(t, store, lazily)
		got := make(chan error, 2)
		for range 2 {
			go func() { got <- c.GetList(t.Context(), "/pods/", everything("0"), &example.PodList{}) }()
		}
		synctest.Wait()
		pod := &example.Pod{}
		if err := c.Get(t.Context(), "/pods/a/one", storage.GetOptions{}, pod); err != nil || pod.Name != "one" {
			t.Errorf("GET while the cache wakes up: %q, %v", pod.Name, err)
		}
		select {
		case err := <-got:
			t.Fatalf("a LIST did not wait for the state: %v", err)
		default:
		}
		elapse(cacher.DefaultFreshnessTimeout)
		for range 2 {
			if err := <-got; !apierrors.IsTooManyRequests(err) {
				t.Errorf("a LIST that waited in vain got %v, want 429", err)
			}
		}
		begun := time.Now()
		_, err := c.Watch(t.Context(), "/pods/", everything("0"))
		if !apierrors.IsTooManyRequests(err) || time.Since(begun) > 0 {
			t.Errorf("a watch that came too late to wait got %v after %v, want 429 at once", err, time.Since(begun))
		}
		open()
		if err := c.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		expectList(t, c, "/pods/", "0", "a/one@2")
		c.Stop()
	})
}

// A cache that nobody uses falls asleep: storage is not watched, nothing is kept.
// It remembers how many objects there are. The next request wakes it.
func TestIdleTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		meters, metric := metered(t)
		store := newStore(poddata.Pod("a/one"))
		c := start(t, store, sleeping, meters)
		defer c.Stop()
		elapse(idleTimeout - time.Second)
		expectList(t, c, "/pods/", "0", "a/one@2") // a use
		elapse(idleTimeout - time.Second)
		if c.Status().Asleep {
			t.Error("the cache sleeps, but was used within the timeout")
		}
		asleep(t, c)
		if n := store.Watches(); n != 0 {
			t.Errorf("a sleeping cache has %d watches of storage", n)
		}
		if metric("asleep") != 1 || c.Status().Objects != 0 || !c.Ready() {
			t.Errorf("asleep, the status is %+v", c.Status())
		}

		before := store.Requests()
		put(store, poddata.Pod("a/two"))
		key := "/pods/a/three"
		if err := c.Create(t.Context(), key, poddata.Pod("a/three"), &example.Pod{}, 0); err != nil {
			t.Error(err)
		}
		if err := c.Delete(t.Context(), key, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if stats, err := c.Stats(t.Context()); err != nil || stats.ObjectCount != 1 {
			t.Errorf("asleep, the cache knows of %+v objects, %v; want what there was before", stats, err)
		}
		elapse(time.Hour)
		if !c.Status().Asleep || store.Requests()["list"] != before["list"] || store.Requests()["watch"] != before["watch"] {
			t.Errorf("writes and counting have woken the cache: %v", store.Requests())
		}
		expectList(t, c, "/pods/", "", "a/one a/two@5")
		if got := metric("woken_up_total"); got != 1 || c.Status().Asleep {
			t.Errorf("woken up %v times, asleep is %v", got, c.Status().Asleep)
		}
		asleep(t, c)
		expectList(t, c, "/pods/", "0", "a/one a/two@5")
	})
}

// An open watch keeps the cache awake, however quiet. A client that resumes from
// before a sleep is told to list, and misses nothing silently.
func TestWatchKeepsAwake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(poddata.Pod("a/one"))
		c := start(t, store, sleeping)
		defer c.Stop()
		w := watchPods(t, c, "/pods/", "2")
		elapse(11*idleTimeout - time.Second) // quiet
		put(store, poddata.Pod("a/two"))
		w.expect("ADDED a/two@3")
		w.Stop()
		for range idleTimeout/time.Second - 1 {
			elapse(time.Second)
			if c.Status().Asleep {
				t.Fatal("the cache sleeps, but a watch has only just ended")
			}
		}
		asleep(t, c)
		put(store, poddata.Pod("a/three"))
		watchPods(t, c, "/pods/", "3").expect("ERROR 410 Expired", "closed")
	})
}

// counting is a storage that is slow to tell how many objects it has, which is
// what a cache asks for last before it falls asleep.
type counting struct {
	*memstore.Store
	meanwhile atomic.Pointer[func()]
}

func (s *counting) Stats(ctx context.Context) (storage.Stats, error) {
	if meanwhile := s.meanwhile.Swap(nil); meanwhile != nil {
		(*meanwhile)()
	}
	return s.Store.Stats(ctx)
}

// Who comes when the cache is about to fall asleep keeps it awake.
func TestUsedWhileFallingAsleep(t *testing.T) {
	for name, use := range map[string]func(*testing.T, *memstore.Store, *cacher.Cacher){
		"a watch": func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) { watchPods(t, c, "/pods/", "2") },
		"a read that waits": func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
			before := store.Requests()["version"]
			open := store.Gate("version")
			t.Cleanup(open)
			go func() { _ = c.GetList(t.Context(), "/pods/", everything(""), &example.PodList{}) }()
			if err := store.AwaitRequests(t.Context(), "version", before+1); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &counting{Store: newStore(poddata.Pod("a/one"))}
				c := start(t, store, sleeping, func(c *cacher.Config) { c.ConsistencyCheckInterval = -1 })
				meanwhile := func() { use(t, store.Store, c) }
				store.meanwhile.Store(&meanwhile)
				elapse(2*idleTimeout + time.Second)
				synctest.Wait()
				if waits := store.meanwhile.Load() != nil; waits || c.Status().Asleep {
					t.Errorf("about to fall asleep: %v, asleep: %v", !waits, c.Status().Asleep)
				}
				c.Stop()
			})
		})
	}
}

// A sleeping cache that is stopped turns everyone away, and so does one that was
// never used; nothing is started for it.
func TestStopAsleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(poddata.Pod("a/one"))
		slept := start(t, store, sleeping)
		asleep(t, slept)
		for name, c := range map[string]*cacher.Cacher{"slept": slept, "never used": newCache(t, store, lazily, sleeping)} {
			before := fmt.Sprint(store.Requests())
			c.Stop()
			c.Stop()
			for range 2 {
				err := c.GetList(t.Context(), "/pods/", everything("0"), &example.PodList{})
				if status := apierrors.APIStatus(nil); !errors.As(err, &status) || status.Status().Code != http.StatusTooManyRequests {
					t.Errorf("%s: LIST after Stop got %v, want 429", name, err)
				}
				if _, err := c.Watch(t.Context(), "/pods/", everything("0")); err == nil {
					t.Errorf("%s: WATCH after Stop is served", name)
				}
				if err := c.Wait(t.Context()); err == nil {
					t.Errorf("%s: Wait after Stop says that it is ready", name)
				}
			}
			if c.Ready() || c.ReadinessCheck() == nil {
				t.Errorf("%s: ready after Stop", name)
			}
			select {
			case <-c.Done():
			default:
				t.Errorf("%s: Done is open after Stop", name)
			}
			if after := fmt.Sprint(store.Requests()); after != before {
				t.Errorf("%s: storage was asked: %s, before %s", name, after, before)
			}
		}
	})
}

// A lazy cache meets a storage that can't estimate sizes when New is over: it
// serves all the same, and says so.
func TestLazyStartWithoutSizes(t *testing.T) {
	store := unsized{newStore(poddata.Pod("a/one"))}
	c := newCache(t, store, lazily)
	expectList(t, c, "/pods/", "0", "a/one@2")
	if last := c.Status().LastError; last == nil {
		t.Error("the status says nothing of the error")
	}
}

// Requests come while the cache falls asleep, sleeps and wakes: each is served,
// and each watch gets everything once.
func TestRequestsWhileFallingAsleep(t *testing.T) {
	store := newStore(poddata.Pod("a/one"))
	meters, metric := metered(t)
	c := start(t, store, meters, func(config *cacher.Config) {
		config.IdleTimeout = time.Millisecond
		config.ConsistencyCheckInterval = -1
	})
	var wokenUp atomic.Int64
	ctx := testContext(t)
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 7))
			for wokenUp.Load() < 30 {
				if c.Status().Asleep {
					wokenUp.Add(1)
				}
				if err := useOnce(ctx, c, random); err != nil {
					t.Error(err)
					return
				}
				pause(random.IntN(5))
			}
		})
	}
	all.Wait()
	watchPods(t, c, "/pods/", "0").expect("ADDED a/one@2")
	if metric("asleep") != 0 || metric("initial_events_total") == 0 {
		t.Error("the cache is awake and its metrics sleep")
	}
}

// pause waits for up to some milliseconds, for the cache to fall asleep or not.
func pause(n int) { <-time.After(time.Duration(n) * time.Millisecond) }

// useOnce makes one request of some kind and checks its answer.
func useOnce(ctx context.Context, c *cacher.Cacher, random *rand.Rand) error {
	switch random.IntN(3) {
	case 0:
		pod := &example.Pod{}
		if err := c.Get(ctx, "/pods/a/one", storage.GetOptions{}, pod); err != nil || pod.Name != "one" {
			return fmt.Errorf("GET: %q, %w", pod.Name, err)
		}
	case 1:
		pods := &example.PodList{}
		if err := c.GetList(ctx, "/pods/", everything(""), pods); err != nil || len(pods.Items) != 1 {
			return fmt.Errorf("LIST: %d pods, %w", len(pods.Items), err)
		}
	case 2:
		w, err := c.Watch(ctx, "/pods/", everything("0"))
		if err != nil {
			return fmt.Errorf("WATCH: %w", err)
		}
		defer w.Stop()
		event, ok := <-w.ResultChan()
		if _, cached := event.Object.(runtime.CacheableObject); !ok || !cached {
			return fmt.Errorf("WATCH: got %v, open is %v", event, ok)
		}
	}
	return nil
}
