// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"bytes"
	"errors"
	"fmt"
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
