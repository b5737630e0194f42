// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/debug"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/metrics"
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
					return nil, errors.New(`no node in {password:hunter2}`)
				}
				return byNode(o)
			}}),
			func(store *memstore.Store) {
				for i := range 600 {
					put(store, poddata.Pod("a/poison", "poison=yes", fmt.Sprint("i=", i)))
				}
			},
			[]string{"index function failed", "no node", "/pods/a/poison", "spec.nodeName"}, nil,
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
		"attributes, with an error that quotes the object": {
			func(config *cacher.Config) {
				config.GetAttrsFunc = func(o runtime.Object) (labels.Set, fields.Set, error) {
					if l, f, _ := poddata.Attrs(o); l["poison"] == "" {
						return l, f, nil
					}
					return nil, nil, errors.New(`Object 'Kind' is missing in '{"data":{"password":"hunter2"}}'`)
				}
			},
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
				inBubble(t, onePod, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
					tc.fault(store)
					for range 120 {
						elapse(5*time.Second - time.Second/120)
						if tc.reads != nil {
							tc.reads(t, store, c)
						}
					}
				}, unchecked, tc.change)
			})
			about := linesAbout(text, tc.says[0])
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
		"etcdserver: no leader",
		"the key is gone",
	} {
		for _, idle := range []bool{true, false} {
			inBubble(t, onePod, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
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
				require.NotNil(t, c.Status().Paused, text)
				_, err := c.Watch(t.Context(), "/pods/", everything("2"))
				assert.True(t, apierrors.IsTooManyRequests(err), "a new watch: %v", err)
				release()
				elapse(10 * time.Second)
				assert.Nil(t, c.Status().Paused, text)
				assert.NoError(t, c.GetList(t.Context(), "/pods/", everything(""), &example.PodList{}))
			}, unchecked)
		}
	}
}

// The marks of an object of another namespace: its name, and its content.
const (
	markedName    = "topsecret"
	markedContent = "hunter2"
)

// quoting are errors that quote the marked object, as decoders and transformers do.
var quoting = map[string]string{
	"json":      `"/pods/hidden/topsecret" can't be decoded: Object 'Kind' is missing in '{"data":{"password":"hunter2"}}'`,
	"a value":   `unable to transform key "/pods/hidden/topsecret": parsing time "hunter2" as "2006-01-02": hunter2 is no year`,
	"protobuf":  "/pods/hidden/topsecret: proto: wrong wireType in \x0a\x07hunter2",
	"backticks": "quantities must match: `hunter2` of /pods/hidden/topsecret",
	// An error of a decoder that quotes one of the connection.
	"connection": `decoding '{"password":"hunter2","note":"rpc error: code = Unavailable, connection refused"}' of /pods/hidden/topsecret`,
}

// REGRESSIONS 122 and 125: what one client's objects contain, and what they are
// called, reaches no other client: not in events, statuses, metrics and the
// debug page. The log may have the name, but no content.
func TestNothingOfObjectsLeaves(t *testing.T) {
	put := func(store *memstore.Store, _ error) {
		put(store, poddata.Pod("hidden/"+markedName, "poison="+markedContent))
	}
	marked := func(o any) bool { return o.(*example.Pod).Labels["poison"] != "" }
	for fault, tc := range map[string]struct {
		configure func(config *cacher.Config, failure error)
		hit       func(store *memstore.Store, failure error)
	}{
		"an object that can't be decoded": {nil, func(store *memstore.Store, failure error) {
			store.Corrupt(apierrors.NewInternalError(failure))
			put(store, nil)
		}},
		"a list that fails": {nil, func(store *memstore.Store, failure error) {
			put(store, nil)
			store.Fail("list", failure)
			store.Fail("watch", failure)
			store.BreakWatches(apierrors.NewResourceExpired("compacted: " + failure.Error()))
		}},
		"a watch that breaks": {nil, func(store *memstore.Store, failure error) {
			put(store, nil)
			store.EndWatches(apierrors.NewInternalError(failure))
		}},
		"a version request": {nil, func(store *memstore.Store, failure error) {
			store.Fail("version", failure)
			store.Fail("keyversions", failure)
			store.Fail("progress", failure)
			put(store, nil)
		}},
		"attributes": {func(config *cacher.Config, failure error) {
			config.GetAttrsFunc = func(o runtime.Object) (labels.Set, fields.Set, error) {
				if marked(o) {
					return nil, nil, failure
				}
				return poddata.Attrs(o)
			}
		}, put},
		"a key": {func(config *cacher.Config, failure error) {
			config.KeyFunc = func(o runtime.Object) (string, error) {
				if marked(o) {
					return "", failure
				}
				return poddata.Key(o)
			}
		}, put},
		"an index": {func(config *cacher.Config, failure error) {
			config.Indexers = &cache.Indexers{storage.FieldIndex("spec.nodeName"): func(o any) ([]string, error) {
				if marked(o) {
					return nil, failure
				}
				return byNode(o)
			}}
		}, put},
		"a conversion": {func(config *cacher.Config, failure error) {
			config.Versioner = failingVersioner{config.Versioner, failure}
		}, put},
		"a difference": {func(config *cacher.Config, _ error) { config.ConsistencyCheckInterval = 10 * time.Second }, func(store *memstore.Store, _ error) {
			miss(store, func() { put(store, nil) })
		}},
	} {
		for name, text := range quoting {
			t.Run(fault+"/"+name, func(t *testing.T) {
				failure := errors.New(text)
				seen := everythingThatLeaves(t, func(config *cacher.Config) {
					if tc.configure != nil {
						tc.configure(config, failure)
					}
				}, func(store *memstore.Store) { tc.hit(store, failure) })
				for where, text := range seen {
					assert.NotContains(t, text, markedContent, "%s: %s", where, text)
					if where != "log" {
						assert.NotContains(t, text, markedName, "%s: %s", where, text)
					}
				}
			})
		}
	}
}

// failingVersioner can't read the resourceVersion of the marked object.
type failingVersioner struct {
	storage.Versioner
	err error
}

func (f failingVersioner) ObjectResourceVersion(o runtime.Object) (uint64, error) {
	if pod, ok := o.(*example.Pod); ok && pod.Labels["poison"] != "" {
		return 0, f.err
	}
	return f.Versioner.ObjectResourceVersion(o)
}

// everythingThatLeaves runs a cache for a minute while a client of one namespace
// uses it and fault happens to an object of another one, and returns all texts that
// have left it.
func everythingThatLeaves(t *testing.T, change func(*cacher.Config), fault func(*memstore.Store)) map[string]string {
	var client strings.Builder
	registry := prometheus.NewRegistry()
	meters, err := metrics.New(registry)
	require.NoError(t, err)
	seen := map[string]string{}
	seen["log"] = logged(t, func() {
		var verbose klog.Level
		require.NoError(t, verbose.Set("10"))
		inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("b/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
			nobody := authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
				return authorizer.DecisionDeny, "", nil
			})
			page := debug.New(debug.Config{Caches: func() []*cacher.Cacher { return []*cacher.Cacher{c} }, Authorizer: nobody})
			ctx := t.Context()
			watches := []*podWatch{watchPods(t, c, "/pods/b/", "2"), watchPods(t, c, "/pods/b/", "", streaming)}
			synctest.Wait()
			fault(store)
			for range 12 {
				// Another client's GET shares the version request of the first one.
				other := goGet(t.Context(), c, "/pods/hidden/"+markedName, "")
				pod := &example.Pod{}
				fmt.Fprintln(&client, c.Get(ctx, "/pods/b/one", storage.GetOptions{}, pod))
				for _, rv := range []string{"", "0", "2"} {
					err := c.GetList(ctx, "/pods/b/", everything(rv), &example.PodList{})
					if apierrors.IsTooManyRequests(err) || apierrors.IsTimeout(err) { // and not storage's own
						fmt.Fprintln(&client, err)
					}
					w, err := c.Watch(ctx, "/pods/b/", everything(rv))
					fmt.Fprintln(&client, err)
					if err == nil {
						watches = append(watches, &podWatch{Interface: w, t: t})
					}
				}
				fmt.Fprintln(&client, c.ReadinessCheck())
				status, err := json.Marshal(c.Status())
				require.NoError(t, err)
				seen["status"] += string(status) + fmt.Sprintf("%+v", c.Status()) // JSON omits fields
				for _, query := range []string{"?format=json", "?format=json&resource=pods&values=true"} {
					shown := httptest.NewRecorder()
					page.ServeHTTP(shown, httptest.NewRequest(http.MethodGet, debug.Path+query, nil))
					require.Equal(t, http.StatusOK, shown.Code, "%s", shown.Body)
					seen["page"] += shown.Body.String()
				}
				elapse(5 * time.Second)
				<-other.done
			}
			for _, w := range watches {
				w.Stop()
				for event := range w.ResultChan() {
					text, err := json.Marshal(event)
					require.NoError(t, err)
					client.Write(text)
				}
			}
		}, func(config *cacher.Config) { config.ConsistencyCheckInterval, config.Metrics = -1, meters }, change)
	})
	seen["client"] = client.String()
	families, err := registry.Gather()
	require.NoError(t, err)
	seen["metrics"] = fmt.Sprint(families)
	return seen
}
