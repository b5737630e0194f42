// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// miss makes the cache's watch miss a write.
func miss(store *memstore.Store, write func()) {
	release := store.Hold()
	write()
	store.SkipEvents()
	release()
}

// garbled tells other versions than it has, each time others or always the
// same ones.
type garbled struct {
	*memstore.Store
	calls atomic.Int64
	same  bool
}

func (g *garbled) Versions(ctx context.Context, prefix string, rv uint64, visit func(string, uint64) error) error {
	key := fmt.Sprintf("%sghost/%d", prefix, g.calls.Add(1))
	if g.same {
		key = prefix + "ghost/one"
	}
	if err := g.KeysAt(ctx, prefix, rv, visit); err != nil {
		return err
	}
	return visit(key, 1)
}

// A check that fails again and again does not make the cache list its storage
// again and again; and one whose difference a list has not mended does not do
// so at all, nor does it turn readers away.
func TestInconsistentForGood(t *testing.T) {
	for _, same := range []bool{false, true} {
		t.Run(fmt.Sprint("the same difference: ", same), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				meters, metric := metered(t)
				g := &garbled{Store: newStore(poddata.Pod("a/one")), same: same}
				c := start(t, g, meters, func(c *cacher.Config) { c.ConsistencyCheckInterval = time.Second })
				defer c.Stop()
				elapse(1000 * time.Second)
				checks, lists := metric(`consistency_checks_total{result="failed"}`), metric("relists_total")
				assert.GreaterOrEqual(t, checks, float64(500), "the checks that have failed")
				most := map[bool]float64{true: 2, false: 1000/8 + 5}[same]
				assert.GreaterOrEqual(t, lists, float64(2), "how often storage was listed")
				assert.LessOrEqual(t, lists, most, "how often storage was listed")
				assert.Equal(t, lists-1, metric(`relists_total{cause="inconsistent"}`), "the lists that are counted as those of an inconsistent cache")
				if same {
					before := g.Requests()["list"]
					for range 100 {
						expectList(t, c, "/pods/", "", "a/one@2")
					}
					assert.Equal(t, before, g.Requests()["list"], "LISTs went to storage")
					expectList(t, c, "/pods/", "2", "a/one@2", exactly)
					assert.Equal(t, before+1, g.Requests()["list"], "an exact LIST was answered from a cache that differs")
				}
			})
		})
	}
}

// paged notes how its lists are asked for.
type paged struct {
	*memstore.Store
	pages, most atomic.Int64 // most: items in one answer
}

func (p *paged) GetList(ctx context.Context, key string, opts storage.ListOptions, into runtime.Object) error {
	err := p.Store.GetList(ctx, key, opts, into)
	if opts.Predicate.Limit == 5_000 { // fills the cache
		return err
	}
	p.pages.Add(1)
	p.most.Store(max(p.most.Load(), int64(len(into.(*example.PodList).Items))))
	return err
}

// Regressions 52 and 53: a collection of many pages is compared page by page, at
// one version whatever is written meanwhile, and one page is in memory at a
// time.
func TestConsistencyCheckOfManyPages(t *testing.T) {
	const objects = 1_333
	for _, missed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			meters, metric := metered(t)
			store := &paged{Store: newStore()}
			for i := range objects {
				put(store.Store, poddata.Pod(fmt.Sprintf("a/p%05d", i)))
			}
			c := start(t, store, meters, func(c *cacher.Config) { c.ConsistencyCheckInterval = time.Minute })
			defer c.Stop()
			if missed {
				miss(store.Store, func() { store.Remove("/pods/a/p01200") })
			}
			expectFresh(t, c)
			elapse(90 * time.Second)
			synctest.Wait()
			want := map[bool]string{false: "passed", true: "failed"}[missed]
			assert.EqualValues(t, 1, metric(fmt.Sprintf(`consistency_checks_total{result=%q}`, want)), "the checks that have %s", want)
			assert.GreaterOrEqual(t, store.pages.Load(), int64(objects/500), "the pages that were read")
			assert.LessOrEqual(t, store.most.Load(), int64(500), "the objects of a page")
		})
	}
}

// checked runs a test in a bubble with a cache of two pods that is compared with its
// storage once a minute. counts is how many comparisons have ended so.
func checked(t *testing.T, f func(t *testing.T, store *memstore.Store, c *cacher.Cacher, counts func(result string) float64), change ...func(*cacher.Config)) {
	t.Helper()
	meters, metric := metered(t)
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one"), poddata.Pod("a/two")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		f(t, store, c, func(result string) float64 { return metric(fmt.Sprintf("consistency_checks_total{result=%q}", result)) })
	}, append(change, meters, func(c *cacher.Config) { c.ConsistencyCheckInterval = time.Minute })...)
}

// Regressions 20 and 51: changes that the cache has missed without noticing are found
// by comparing it with storage, object by object or by keys. TestScripts/doubt has what
// follows from it.
func TestConsistencyCheckFindsDifferences(t *testing.T) {
	missing := func(change func(*memstore.Store)) func(*memstore.Store) {
		return func(store *memstore.Store) { miss(store, func() { change(store) }) }
	}
	for _, tc := range []struct {
		name   string
		change func(*memstore.Store)
		says   string // "": they agree
	}{
		{"nothing", func(*memstore.Store) {}, ""},
		{"changes that came", func(s *memstore.Store) { put(s, poddata.Pod("b/one")); s.Remove("/pods/a/one") }, ""},
		{"an addition before", missing(func(s *memstore.Store) { put(s, poddata.Pod("a/and")) }), `"/pods/a/and" at 4 where the cache has "/pods/a/one" at 2`},
		{"an addition beyond", missing(func(s *memstore.Store) { put(s, poddata.Pod("b/one")) }), `"/pods/b/one" at 4 beyond`},
		{"a change", missing(func(s *memstore.Store) { put(s, poddata.Pod("a/one")) }), `"/pods/a/one" at 4 where the cache has "/pods/a/one" at 2`},
		{"a deletion", missing(func(s *memstore.Store) { s.Remove("/pods/a/one") }), `"/pods/a/two" at 3 where the cache has "/pods/a/one" at 2`},
		{"the last deletion", missing(func(s *memstore.Store) { s.Remove("/pods/a/two") }), `nothing where the cache has "/pods/a/two" at 3`},
	} {
		for _, keysOnly := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, keys only %v", tc.name, keysOnly), func(t *testing.T) {
				text := logged(t, func() {
					checked(t, func(t *testing.T, store *memstore.Store, c *cacher.Cacher, counts func(string) float64) {
						tc.change(store)
						expectFresh(t, c)
						before := store.Requests()["list"]
						defer store.Gate("watch")() // the cache is not listed again
						elapse(90 * time.Second)
						assert.NotEqual(t, keysOnly, store.Requests()["list"] > before, "whether objects were listed")
						differs, want := tc.says != "", map[string]float64{"passed": 1}
						if differs {
							want = map[string]float64{"failed": 1}
						}
						for _, result := range []string{"passed", "failed"} {
							assert.Equal(t, want[result], counts(result), "checks that have %s", result)
						}
						last := c.Status().LastError
						require.Equal(t, differs, last != nil, "whether the status tells an error: %+v", last)
						if differs {
							assert.Contains(t, last.Message, "differs")
							assert.NotContains(t, last.Message, "/pods/a/", "the status names an object")
						}
						before = store.Requests()["list"]
						list(t, c, "/pods/", fmt.Sprint(c.Status().ResourceVersion), exactly)
						assert.Equal(t, differs, store.Requests()["list"] > before, "an exact LIST went to storage")
					}, func(c *cacher.Config) {
						if keysOnly {
							c.Storage = keysOf{c.Storage.(*memstore.Store)}
						}
					})
				})
				assert.Contains(t, strings.ReplaceAll(text, `\"`, `"`), tc.says)
			})
		}
	}
}

// keysOf can tell keys and versions without objects.
type keysOf struct{ *memstore.Store }

func (s keysOf) Versions(ctx context.Context, prefix string, rv uint64, visit func(string, uint64) error) error {
	return s.KeysAt(ctx, prefix, rv, visit)
}

// A check that can't be made changes nothing; and a version that storage has
// compacted meanwhile is no error.
func TestConsistencyCheckCannotBeMade(t *testing.T) {
	checked(t, func(t *testing.T, store *memstore.Store, c *cacher.Cacher, counts func(string) float64) {
		store.Fail("list", errors.New("etcdserver: no leader"))
		elapse(90 * time.Second)
		last := c.Status().LastError
		require.NotNil(t, last, "the status tells no error")
		assert.Contains(t, last.Message, "no leader")
		assert.EqualValues(t, 1, counts("error"))
		store.Fail("list", nil)
		expectList(t, c, "/pods/", "3", "a/one a/two@3", exactly)

		store.Hold()
		store.Compact(store.Touch())
		before := c.Status().LastError.Times
		elapse(90 * time.Second)
		assert.Equal(t, before, c.Status().LastError.Times)
		assert.EqualValues(t, 2, counts("error"))
		assert.Zero(t, counts("passed")+counts("failed"))
	})
}

// pausedOnce answers one version request with what was true before: what an
// etcd can do whose process was stopped at the wrong moment.
type pausedOnce struct {
	*memstore.Store
	old chan uint64
}

func (s pausedOnce) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	rv, err := s.Store.GetCurrentResourceVersion(ctx)
	select {
	case old := <-s.old:
		return old, err
	default:
		return rv, err
	}
}

// REGRESSIONS 74 and 77: storage answers a consistent read with an old
// version. Nobody is served a state older than one that was seen before.
func TestOldVersionInAnAnswer(t *testing.T) {
	var storage pausedOnce
	inBubble(t, onePod, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		put(store, poddata.Pod("a/two"))
		put(store, poddata.Pod("a/three"))
		synctest.Wait()
		expectList(t, c, "/pods/", "", "a/one a/three a/two@4")
		storage.old <- 2
		expectList(t, c, "/pods/", "", "a/one a/three a/two@4")
		elapse(10 * time.Second) // whatever the cache makes of it, it heals
		expectList(t, c, "/pods/", "", "a/one a/three a/two@4")
	}, func(config *cacher.Config) {
		storage = pausedOnce{config.Storage.(*memstore.Store), make(chan uint64, 1)}
		config.Storage = storage
	})
}

// REGRESSIONS 128: a watch that waits for the end of a doubt begins with the state that
// was listed then. One that resumes from the state in doubt gets a 410.
func TestWatchesWaitForTheEndOfADoubt(t *testing.T) {
	for name, w := range map[string]struct {
		rv     string
		change func(*storage.ListOptions)
		want   []string
	}{
		"a watch-list":         {"", streaming, []string{"ADDED a/one@2", "ADDED a/two@4", "BOOKMARK@5 end of initial events"}},
		"a watch-list, any":    {"0", streaming, []string{"ADDED a/one@2", "ADDED a/two@4", "BOOKMARK@5 end of initial events"}},
		"a watch":              {"", withBookmarks, []string{"ADDED a/one@2", "ADDED a/two@4"}},
		"a watch, any":         {"0", withBookmarks, []string{"ADDED a/one@2", "ADDED a/two@4"}},
		"a watch that resumes": {"3", withBookmarks, []string{"ERROR 410 Expired", "closed"}},
	} {
		inBubble(t, onePod, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
			miss(store, func() { put(store, poddata.Pod("a/two")) })
			expectList(t, c, "/pods/", "", "a/one@3") // nobody knows yet
			time.AfterFunc(2*time.Second, store.Gate("watch"))
			put(store, poddata.Pod("a/two"))
			elapse(time.Second)
			store.Touch()
			got := received(watchPods(t, c, "/pods/", w.rv, w.change))
			require.GreaterOrEqual(t, len(got), len(w.want), name)
			assert.Equal(t, w.want, got[:len(w.want)], name) // a 410 may follow
		})
	}
}

// Two stored objects have one key, and a list at the state's own version comes, or a comparison:
// they have the same winner as the state, so that no watch ends with a 410 (regression 182).
func TestObjectsOfOneKeyAreNoContradiction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		store.Put("/pods/a/twin", poddata.Pod("a/one", "twin=yes"))
		put(store, poddata.Pod("a/one"))
		store.Put("/pods/a/twin", poddata.Pod("a/one", "twin=yes")) // lists have it last
		put(store, poddata.Pod("a/one"))
		c := start(t, store, unchecked)
		defer c.Stop()
		w := watchPods(t, c, "/pods/", "5")
		store.BreakWatches(apierrors.NewResourceExpired("compacted"))
		elapse(time.Minute)
		assert.Equal(t, "closed", w.next(), "a list without a difference ends watches without an error")
		again := watchPods(t, c, "/pods/", "5")
		put(store, poddata.Pod("a/two"))
		again.expect("ADDED a/two@6")
	})
	inBubble(t, func() *memstore.Store {
		store := newStore()
		store.Put("/pods/a/twin", poddata.Pod("a/one", "twin=yes"))
		put(store, poddata.Pod("a/one"))
		return store
	}, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "3")
		elapse(time.Hour)
		put(store, poddata.Pod("a/two"))
		w.expect("ADDED a/two@4")
	})
}
