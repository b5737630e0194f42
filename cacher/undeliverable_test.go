// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

var undecodable = apierrors.NewInternalError(errors.New(`"/pods/a/corrupt" can't be decoded`))

// REGRESSIONS 87 and 105: while an object can't be decoded, GETs of all others
// are answered, LISTs go to storage if there are few of them, those who watch
// are told once, and new watches are refused with a Retry-After that grows. The
// cache recovers by itself.
func TestUndecodableObject(t *testing.T) {
	count, sum := counted(t)
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one"), poddata.Pod("a/two")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "3")
		synctest.Wait()
		release := store.Corrupt(undecodable)
		put(store, poddata.Pod("a/corrupt"))
		elapse(5 * time.Second)
		expectReceived(t, w, "ERROR 500 InternalError", "closed")
		paused := c.Status().Paused
		require.NotNil(t, paused, "the status does not say that the cache is paused")
		assert.Contains(t, paused.Message, "InternalError")
		assert.EqualValues(t, 1, sum("paused"), "the metric")
		for minute := range 10 {
			expectGetsServed(t, c, 100)
			expectListsBounded(t, store, c, 100)
			expectList(t, c, "/pods/", "0", "a/one a/two@3")
			last := 0
			for second := range 60 {
				watched, err := c.Watch(t.Context(), "/pods/", everything("3"))
				code, seconds := retryAfter(err)
				require.True(t, watched == nil, "a watch was opened")
				require.EqualValues(t, http.StatusTooManyRequests, code, "a watch: %v", err)
				require.ErrorContains(t, err, "cannot deliver", "a watch")
				assert.GreaterOrEqual(t, seconds, last, "retry after, %d min %d s later", minute, second)
				if minute > 1 {
					assert.Equal(t, 30, seconds, "retry after, %d min %d s later", minute, second)
				}
				last = seconds
				elapse(time.Second)
			}
		}
		release()
		elapse(10 * time.Second)
		paused = c.Status().Paused
		assert.Nil(t, paused, "after that the status says that the cache is paused")
		assert.Zero(t, sum("paused"), "the metric after that")
		expectList(t, c, "/pods/", "", "a/corrupt a/one a/two@4")
		w = watchPods(t, c, "/pods/", "4")
		put(store, poddata.Pod("a/after"))
		expectReceived(t, w, "ADDED a/after@5")
	}, count, func(config *cacher.Config) { config.ConsistencyCheckInterval = -1 })
}

// expectGetsServed wants all of n consistent GETs at once answered.
func expectGetsServed(t *testing.T, c *cacher.Cacher, n int) {
	t.Helper()
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			pod := &example.Pod{}
			err := c.Get(t.Context(), "/pods/a/one", storage.GetOptions{}, pod)
			require.NoError(t, err, "a GET of another object")
			assert.Equal(t, "one", pod.Name, "a GET of another object")
		})
	}
	all.Wait()
}

// expectListsBounded wants few of n consistent LISTs to reach storage, and all
// to have an answer at once.
func expectListsBounded(t *testing.T, store *memstore.Store, c *cacher.Cacher, n int) {
	t.Helper()
	began, before := time.Now(), store.Requests()["list"]
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			err := c.GetList(t.Context(), "/pods/", everything(""), &example.PodList{})
			code, _ := retryAfter(err)
			if code != http.StatusTooManyRequests {
				assert.True(t, apierrors.IsInternalError(err), "a LIST of everything: %v", err)
			}
		})
	}
	all.Wait()
	lists := store.Requests()["list"] - before
	assert.NotZero(t, lists, "no LIST of %d reached storage", n)
	assert.LessOrEqual(t, lists, cacher.DefaultMaxFallbackLists+1, "the LISTs of %d that reached storage", n)
	assert.Zero(t, time.Since(began), "how long LISTs waited in vain") // virtual time
}

// A cache that could never list, because of an object that can't be decoded,
// lets few LISTs through to storage, which may be of others.
func TestUndecodableObjectAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(poddata.Pod("a/one"))
		release := store.Corrupt(undecodable)
		put(store, poddata.Pod("a/corrupt"))
		c, err := cacher.New(podConfig(store))
		require.NoError(t, err)
		defer c.Stop()
		elapse(time.Minute)
		expectGetsServed(t, c, 10)
		expectListsBounded(t, store, c, 100)
		release()
		elapse(10 * time.Second)
		expectList(t, c, "/pods/", "", "a/corrupt a/one@3")
	})
}

// REGRESSIONS 58: the status and the readiness check of a cache that is not ready
// have the last error of its connection to storage, also of a watch that failed before
// a list that hangs. Clients get a 429 with fixed words.
func TestStoragesErrorIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		store.Fail("watch", errors.New("rpc error: code = Unavailable desc = permission denied, by https://root:hunter2@etcd:2379"))
		open := store.Gate("list")
		c, err := cacher.New(podConfig(store))
		require.NoError(t, err)
		defer c.Stop()
		elapse(time.Minute)
		_, watching := c.Watch(t.Context(), "/pods/", everything("0"))
		listing := c.GetList(t.Context(), "/pods/", everything("0"), &example.PodList{})
		for _, err := range []error{watching, listing} {
			assert.True(t, apierrors.IsTooManyRequests(err), "%v", err)
			assert.NotContains(t, err.Error(), "permission denied")
		}
		err = c.ReadinessCheck()
		assert.ErrorIs(t, err, storage.ErrStorageNotReady, "the readiness check")
		assert.ErrorContains(t, err, "permission denied", "the readiness check")
		last := c.Status().LastError
		require.NotNil(t, last, "the status tells no error")
		assert.Contains(t, last.Message, "permission denied, by https://etcd:2379", "without credentials")
		open()
	})
}

// logged returns what f logs at the default verbosity.
func logged(t *testing.T, f func()) string {
	t.Helper()
	var mu sync.Mutex
	var text bytes.Buffer
	defer klog.CaptureState().Restore()
	klog.LogToStderr(false)
	klog.SetOutput(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return text.Write(p)
	}))
	f()
	klog.Flush()
	mu.Lock()
	defer mu.Unlock()
	return text.String()
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// REGRESSIONS 114: an error that the cache recovers from but that a person must
// mend is logged, at most once a minute, with the resource, with what the cache
// does about it and what can be done, and never with an object's content.
func TestErrorsToMendAreLogged(t *testing.T) {
	failing := func(text string) func(*cacher.Config) {
		return func(config *cacher.Config) {
			config.GetAttrsFunc = func(o runtime.Object) (l labels.Set, f fields.Set, err error) {
				if l, f, err = poddata.Attrs(o); l["poison"] != "" {
					return nil, nil, errors.New(text)
				}
				return l, f, err
			}
		}
	}
	list := func(t *testing.T, c *cacher.Cacher) { goList(t.Context(), c, "") }
	for name, tc := range map[string]struct {
		change func(*cacher.Config)
		fault  func(*memstore.Store)
		says   []string
		// reads is called every five seconds.
		reads func(*testing.T, *memstore.Store, *cacher.Cacher)
	}{
		"an index function": {
			withIndexers(cache.Indexers{storage.FieldIndex("spec.nodeName"): func(o any) ([]string, error) {
				if o.(*example.Pod).Labels["poison"] != "" {
					return nil, errors.New(`no node in {"password":"hunter2"}`)
				}
				return byNode(o)
			}}),
			func(store *memstore.Store) {
				for i := range 600 {
					put(store, poddata.Pod("a/poison", "poison=yes", fmt.Sprint("i=", i)))
				}
			},
			[]string{"index function has failed", "no node", "/pods/a/poison", "spec.nodeName"}, nil,
		},
		"a key outside of the prefix": {
			func(config *cacher.Config) {
				config.KeyFunc = func(o runtime.Object) (string, error) {
					key, err := poddata.Key(o)
					return strings.Replace(key, "/pods/a/poison", "/elsewhere", 1), err
				}
			},
			func(store *memstore.Store) { put(store, poddata.Pod("a/poison")) },
			[]string{"outside of the resource's prefix", "/elsewhere"}, nil,
		},
		"progress that can't be requested": {
			func(*cacher.Config) {},
			func(store *memstore.Store) {
				store.Fail("progress", errors.New("not permitted"))
				store.Touch()
			},
			[]string{"progress of its watch", "not permitted"}, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) { list(t, c) },
		},
		"a version that can't be asked for": {
			func(*cacher.Config) {},
			func(store *memstore.Store) {
				store.Fail("version", errors.New("not permitted"))
				store.Fail("keyversions", errors.New("not permitted"))
			},
			[]string{"its version can't be read", "not permitted"},
			func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				put(store, poddata.Pod("a/two", fmt.Sprint("i=", time.Now().Unix())))
				list(t, c)
			},
		},
		"a comparison that can't be made": {
			func(config *cacher.Config) { config.ConsistencyCheckInterval = time.Minute },
			func(store *memstore.Store) { store.Fail("list", errors.New("not permitted")) },
			[]string{"could not be compared", "not permitted"}, nil,
		},
		"the attributes of an object": {
			failing("no attributes"),
			func(store *memstore.Store) { put(store, poddata.Pod("a/poison", "poison=yes")) },
			[]string{"could not be applied", "no attributes", "/pods/a/poison"}, nil,
		},
		"an error that quotes the object": {
			failing(`Object 'Kind' is missing in '{"data":{"password":"hunter2"}}'`),
			func(store *memstore.Store) { put(store, poddata.Pod("a/poison", "poison=yes")) },
			[]string{"could not be applied", "Object 'Kind' is missing", "/pods/a/poison"}, nil,
		},
		"an object that can't be decoded": {
			func(*cacher.Config) {},
			func(store *memstore.Store) {
				store.Corrupt(undecodable)
				put(store, poddata.Pod("a/corrupt"))
			},
			[]string{"cannot deliver", "/pods/a/corrupt"}, nil,
		},
		"a storage that can't be watched": {
			func(*cacher.Config) {},
			func(store *memstore.Store) { store.EndWatches(noLeader) },
			[]string{"cannot be watched", "no leader"}, nil,
		},
		"a storage that can't be listed": {
			func(*cacher.Config) {},
			func(store *memstore.Store) {
				store.Fail("list", errors.New("out of order"))
				store.Fail("version", errors.New("out of order"))
				store.Fail("watch", errors.New("out of order"))
				store.BreakWatches(apierrors.NewResourceExpired("gone"))
			},
			[]string{"could not be listed", "out of order"}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			text := logged(t, func() {
				inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
					tc.fault(store)
					for range 120 {
						elapse(5*time.Second - time.Second/120)
						if tc.reads != nil {
							tc.reads(t, store, c)
						}
					}
				}, func(config *cacher.Config) { config.ConsistencyCheckInterval = -1 }, tc.change)
			})
			var about []string // each is written once for each severity below its own
			for line := range strings.Lines(text) {
				if strings.Contains(line, tc.says[0]) && !slices.Contains(about, line) {
					about = append(about, line)
				}
			}
			require.NotEmpty(t, about, "no line in ten minutes says %q:\n%s", tc.says[0], text)
			require.LessOrEqual(t, len(about), 11, "the lines in ten minutes that say %q, of\n%s", tc.says[0], text)
			for _, want := range append(tc.says, `resource="pods"`, "remedy=", "The watch cache") {
				assert.Contains(t, about[0], want)
			}
			assert.NotContains(t, text, "hunter2", "the log quotes an object")
		})
	}
}
