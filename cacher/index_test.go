// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/metrics"
)

func byNode(obj any) ([]string, error) { return []string{obj.(*example.Pod).Spec.NodeName}, nil }

func withIndexers(indexers cache.Indexers) func(*cacher.Config) {
	return func(c *cacher.Config) { c.Indexers = &indexers }
}

func withLabels(names ...string) func(*cacher.Config) {
	return func(c *cacher.Config) { c.LabelIndexes = names }
}

const (
	crowd           = 20_000
	crowdNamespaces = 100
	crowdApps       = 100 // 200 pods of each, two in each namespace
	crowdNodes      = 400 // 50 pods on each
)

// newCrowd returns a store of many pods, at resourceVersions 2 to crowd+1.
func newCrowd() *memstore.Store {
	store := newStore()
	for i := range crowd {
		put(store, poddata.Pod(fmt.Sprintf("ns%02d/pod%05d", i%crowdNamespaces, i),
			fmt.Sprintf("app=app%02d", i/crowdNamespaces%crowdApps), fmt.Sprintf("size=%d", i%2), fmt.Sprintf("spec.nodeName=n%03d", i*7%crowdNodes)))
	}
	return store
}

// listCost counts, from one look to the next, how many objects LISTs looked at
// and how many they returned.
type listCost struct {
	read     func(series string) float64
	looked   float64
	returned float64
}

func (l *listCost) since() (looked, returned int) {
	before := *l
	l.looked, l.returned = l.read("list_evaluated_objects_total"), l.read("list_returned_objects_total")
	return int(l.looked - before.looked), int(l.returned - before.returned)
}

// A LIST looks at nothing but what an index, the namespace or the key prefix
// leaves; at the latest version, at an earlier one and page by page.
func TestListLooksAtMatchesOnly(t *testing.T) {
	meters, read := metered(t)
	store := newCrowd()
	c := start(t, store, meters, withLabels("app", "size"), withIndexers(cache.Indexers{storage.FieldIndex("spec.nodeName"): byNode}))
	then := fmt.Sprint(crowd + 1)
	// From here on versions differ: one of app07 and one of app08 have gone.
	store.Remove("/pods/ns00/pod00700")
	store.Remove("/pods/ns00/pod00800")
	expectFresh(t, c)
	cost := &listCost{read: read}
	cost.since()

	for _, tc := range []struct {
		name, key, label, field string
		then, now, looks        int // looks < 0: as many as match
	}{
		{"label", "/pods/", "app=app07", "", 200, 199, -1},
		{"double equals", "/pods/", "app==app07", "", 200, 199, -1},
		{"label without objects", "/pods/", "app=none", "", 0, 0, -1},
		{"field", "/pods/", "", "spec.nodeName=n003", 50, 50, -1},
		{"set", "/pods/", "app in (app07,app08,none)", "", 400, 398, -1},
		{"set of one", "/pods/", "app in (app07)", "", 200, 199, -1},
		{"large set", "/pods/", "app in (" + strings.Join(apps(0, 50), ",") + ")", "", 10_000, 9998, -1},
		{"label and namespace", "/pods/ns05/", "app=app07", "", 2, 2, -1},
		{"set and namespace", "/pods/ns00/", "app in (app07,app08)", "", 4, 2, -1},
		{"the field narrower than the label", "/pods/", "app=app08", "spec.nodeName=n000", 2, 1, 50},
		{"the label narrower than the other one", "/pods/", "size=1,app=app07", "", 100, 100, 200},
		{"the set narrower than the label", "/pods/", "size=0,app in (app07,app08)", "", 200, 198, 400},
		{"two sets of one label", "/pods/", "app in (app07,app08,app09,app10),app in (app08,app11)", "", 200, 199, 400},
		{"the namespace as a field", "/pods/", "", "metadata.namespace=ns05", 200, 200, -1},
		{"the namespace as a field and a label", "/pods/", "app=app07", "metadata.namespace=ns00", 2, 1, -1},
		{"the name as a field", "/pods/ns05/", "", "metadata.name=pod00005", 1, 1, 200},
		{"nothing", "/pods/", "app=app07,app=app08", "", 0, 0, 200},
		{"not", "/pods/ns05/", "app!=app07", "", 198, 198, 200},
		{"not in", "/pods/ns05/", "app notin (app07,app08)", "", 196, 196, 200},
		{"exists", "/pods/ns05/", "app", "", 200, 200, 200},
		{"an empty namespace", "/pods/none/", "app=app07", "", 0, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, at := range []struct {
				rv      string
				exactly bool
				want    int
			}{{"0", false, tc.now}, {"", false, tc.now}, {then, true, tc.then}} {
				opts := everything(at.rv)
				opts.Predicate = poddata.Predicate(tc.label, tc.field)
				if at.exactly {
					opts.ResourceVersionMatch = "Exact"
				}
				pods := &example.PodList{}
				require.NoError(t, c.GetList(testContext(t), tc.key, opts, pods))
				looked, returned := cost.since()
				// Objects that were deleted since are not looked at any more.
				most := max(tc.looks, at.want)
				require.Len(t, pods.Items, at.want, "rv=%q", at.rv)
				assert.Equal(t, at.want, returned, "rv=%q: the objects that are counted as returned", at.rv)
				assert.LessOrEqual(t, looked, most, "rv=%q: the objects that were looked at", at.rv)
				assert.GreaterOrEqual(t, looked, at.want, "rv=%q: the objects that were looked at", at.rv)
				if tc.looks < 0 {
					assert.Equal(t, at.want, looked, "rv=%q: the objects that were looked at", at.rv)
				}
				expectOrder(t, pods)
				expectAll(t, opts.Predicate, pods)
			}
			pagesLookAtMatchesOnly(t, c, cost, tc.key, poddata.Predicate(tc.label, tc.field), tc.now, tc.looks)
		})
	}
}

// pagesLookAtMatchesOnly walks through a list in pages: each looks at no more
// than itself and at the one element that tells that there are more.
func pagesLookAtMatchesOnly(t *testing.T, c *cacher.Cacher, cost *listCost, key string, predicate storage.SelectionPredicate, want, looks int) {
	t.Helper()
	const limit = 60
	all := &example.PodList{}
	for {
		opts := everything("")
		opts.Predicate = predicate
		opts.Predicate.Limit = limit
		opts.Predicate.Continue = all.Continue
		page := &example.PodList{}
		require.NoError(t, c.GetList(testContext(t), key, opts, page))
		looked, _ := cost.since()
		if looks < 0 {
			assert.LessOrEqual(t, looked, len(page.Items)+1, "a page of %d looked at %d", len(page.Items), looked)
		}
		all.Items = append(all.Items, page.Items...)
		if all.Continue = page.Continue; all.Continue == "" {
			break
		}
		assert.Len(t, page.Items, limit, "a page has %d items, and there are more", len(page.Items))
	}
	assert.Len(t, all.Items, want, "the pages have %d items", len(all.Items))
	expectOrder(t, all)
}

func apps(from, to int) (names []string) {
	for i := from; i < to; i++ {
		names = append(names, fmt.Sprintf("app%02d", i))
	}
	return names
}

// expectFresh waits for the cache to have what the store has.
func expectFresh(t testing.TB, c *cacher.Cacher) {
	t.Helper()
	list(t, c, "/pods/", "", func(o *storage.ListOptions) { o.Predicate.Limit = 1 })
}

func expectOrder(t *testing.T, pods *example.PodList) {
	t.Helper()
	last := ""
	for i := range pods.Items {
		key, err := poddata.Key(&pods.Items[i])
		require.NoError(t, err, key)
		require.Greater(t, key, last, "the keys are not in order")
		last = key
	}
}

func expectAll(t *testing.T, predicate storage.SelectionPredicate, pods *example.PodList) {
	t.Helper()
	for i := range pods.Items {
		matches, err := predicate.Matches(&pods.Items[i])
		require.NoError(t, err, pods.Items[i].Name)
		require.True(t, matches, "%s is not selected", pods.Items[i].Name)
	}
}

func TestListOfNothing(t *testing.T) {
	meters, read := metered(t)
	c := start(t, newStore(poddata.Pod("a/one")), meters)
	opts := everything("0")
	opts.Predicate.Label = labels.Nothing()
	pods := &example.PodList{}
	err := c.GetList(testContext(t), "/pods/", opts, pods)
	require.NoError(t, err)
	require.NotNil(t, pods.Items, "the items are nil, which encodes as null")
	assert.Empty(t, pods.Items)
	n := read("list_evaluated_objects_total")
	assert.Zero(t, n, "looked at %v objects", n)
}

// An object that an index function fails for is found all the same.
func TestIndexFunctionFails(t *testing.T) {
	store := newStore(poddata.Pod("a/good", "spec.nodeName=n1"), poddata.Pod("a/bad", "spec.nodeName=n1"), poddata.Pod("a/other", "spec.nodeName=n2"))
	c := start(t, store, withIndexers(cache.Indexers{storage.FieldIndex("spec.nodeName"): func(obj any) ([]string, error) {
		if obj.(*example.Pod).Name == "bad" {
			return nil, errors.New("no node")
		}
		return byNode(obj)
	}}))
	expectList(t, c, "/pods/", "0", "a/bad a/good@4", selecting("", "spec.nodeName=n1"))
	expectList(t, c, "/pods/", "0", "a/other@4", selecting("", "spec.nodeName=n2"))
	store.Remove("/pods/a/bad")
	expectList(t, c, "/pods/", "", "a/good@5", selecting("", "spec.nodeName=n1"))
}

// An index may have any number of values for an object.
func TestIndexOfManyValues(t *testing.T) {
	store := newStore(poddata.Pod("a/one", "colors=red-green", "spec.nodeName=n1"), poddata.Pod("a/two", "colors=green"), poddata.Pod("a/three"))
	meters, read := metered(t)
	c := start(t, store, meters, withIndexers(cache.Indexers{
		storage.LabelIndex("colors"): func(obj any) ([]string, error) {
			colors, ok := obj.(*example.Pod).Labels["colors"]
			if !ok {
				return nil, nil
			}
			return append(strings.Split(colors, "-"), colors, colors), nil
		},
	}))
	expectList(t, c, "/pods/", "0", "a/two@4", selecting("colors=green", ""))
	expectList(t, c, "/pods/", "0", "a/one@4", selecting("colors=red-green", ""))
	n := read("list_evaluated_objects_total")
	assert.EqualValues(t, 3, n, "looked at %v objects, want 3: those with green, and the one with red-green", n)
}

// Keys that don't begin with the namespace: selecting by it finds everything.
func TestNamespaceIsNotInTheKey(t *testing.T) {
	store := newStore()
	key := func(obj runtime.Object) (string, error) {
		accessor, err := meta.Accessor(obj)
		if err != nil {
			return "", err
		}
		if accessor.GetName() == "stray" {
			return "/pods/elsewhere", nil
		}
		return poddata.Key(obj)
	}
	store.Put("/pods/a/one", poddata.Pod("a/one"))
	store.Put("/pods/b/one", poddata.Pod("b/one"))
	meters, read := metered(t)
	c := start(t, store, meters, func(c *cacher.Config) { c.KeyFunc = key })
	expectList(t, c, "/pods/", "0", "a/one@3", selecting("", "metadata.namespace=a"))
	n := read("list_evaluated_objects_total")
	assert.EqualValues(t, 1, n, "looked at %v objects", n)
	stray := store.Put("/pods/elsewhere", poddata.Pod("a/stray"))
	expectList(t, c, "/pods/", "", "a/one a/stray@4", selecting("", "metadata.namespace=a"))
	store.Remove("/pods/elsewhere")
	expectList(t, c, "/pods/", "", "a/one@5", selecting("", "metadata.namespace=a"))
	expectList(t, c, "/pods/", fmt.Sprint(stray), "a/one a/stray@4", selecting("", "metadata.namespace=a"), exactly)
	before := read("list_evaluated_objects_total")
	expectList(t, c, "/pods/", "", "a/one@5", selecting("", "metadata.namespace=a"))
	n = read("list_evaluated_objects_total") - before
	assert.EqualValues(t, 1, n, "looked at %v objects after the stray one had gone", n)
}

func exactly(o *storage.ListOptions) { o.ResourceVersionMatch = "Exact" }

// Regression 43: values of an index that no object has any more take no memory.
// Package watchcache tests that its trees shrink; this test, that values come
// and go without a trace in reads.
func TestIndexFollowsChanges(t *testing.T) {
	store := newStore(poddata.Pod("a/one", "app=x"))
	c := start(t, store, withLabels("app"))
	expectList(t, c, "/pods/", "", "a/one@2", selecting("app=x", ""))
	put(store, poddata.Pod("a/one", "app=y"))
	expectList(t, c, "/pods/", "", "@3", selecting("app=x", ""))
	expectList(t, c, "/pods/", "", "a/one@3", selecting("app=y", ""))
	put(store, poddata.Pod("a/one"))
	expectList(t, c, "/pods/", "", "@4", selecting("app in (x,y)", ""))
	expectList(t, c, "/pods/", "2", "a/one@2", selecting("app in (x,y)", ""), exactly)
	store.Remove("/pods/a/one")
	expectList(t, c, "/pods/", "", "@5", selecting("app in (x,y)", ""))
}

// The predicate's own IndexFields and IndexLabels name what an API server's
// author has indexed: they are served, with and without a request's namespace.
func TestPredicateNamesIndexes(t *testing.T) {
	meters, read := metered(t)
	store := newStore(poddata.Pod("a/one", "app=x", "spec.nodeName=n1"), poddata.Pod("a/two", "app=y", "spec.nodeName=n2"), poddata.Pod("b/one", "app=x", "spec.nodeName=n1"))
	c := start(t, store, meters, withLabels("app"), withIndexers(cache.Indexers{storage.FieldIndex("spec.nodeName"): byNode}))
	cost := &listCost{read: read}
	for _, tc := range []struct{ key, label, field, want string }{
		{"/pods/", "app=x", "", "a/one b/one@4"},
		{"/pods/", "", "spec.nodeName=n2", "a/two@4"},
		{"/pods/b/", "app=x", "spec.nodeName=n1", "b/one@4"},
	} {
		cost.since()
		expectList(t, c, tc.key, "0", tc.want, selecting(tc.label, tc.field), func(o *storage.ListOptions) {
			o.Predicate.IndexLabels, o.Predicate.IndexFields = []string{"app", "other"}, []string{"spec.nodeName", "metadata.namespace"}
		})
		looked, returned := cost.since()
		assert.Equal(t, returned, looked, "%+v: looked at %d for %d", tc, looked, returned)
	}
}

// What LISTs ask for again and again gets an index, which Status and the metrics show, and
// which goes when nobody has asked for ten minutes; unless the configuration has no room
// for any.
func TestAdaptiveIndexes(t *testing.T) {
	for name, test := range map[string]struct {
		configure func(*cacher.Config)
		built     bool
	}{
		"default":    {func(c *cacher.Config) {}, true},
		"none":       {func(c *cacher.Config) { c.AdaptiveIndexes = -1 }, false},
		"no room":    {func(c *cacher.Config) { c.AdaptivePercent = 1 }, false},
		"sufficient": {func(c *cacher.Config) { c.AdaptivePercent, c.AdaptiveIndexes = 100, 1 }, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				meters, read := metered(t)
				store := newStore()
				const pods = 500
				for i := range pods {
					put(store, poddata.Pod(fmt.Sprintf("a/pod%03d", i), fmt.Sprintf("app=app%02d", i/10)))
				}
				c := start(t, store, meters, test.configure)
				cost := &listCost{read: read}
				list := func() (looked int) {
					opts := everything("0")
					opts.Predicate = poddata.Predicate("app=app07", "")
					var into example.PodList
					require.NoError(t, c.GetList(t.Context(), "/pods/", opts, &into))
					require.Len(t, into.Items, 10)
					looked, _ = cost.since()
					return looked
				}
				cost.since()
				for range 40 {
					require.Equal(t, pods, list())
				}
				elapse(2 * time.Second)
				if !test.built {
					require.Empty(t, c.Status().AdaptiveIndexes)
					require.Equal(t, pods, list())
					return
				}
				require.Equal(t, []string{"l:app"}, c.Status().AdaptiveIndexes)
				require.Equal(t, 1.0, read("indexes"))
				require.Equal(t, 10, list())
				require.Equal(t, map[string]uint64{"keys": 40, "other": 1}, c.Status().Totals.ReadsByIndex)
				put(store, poddata.Pod("a/pod070"))
				synctest.Wait()
				put(store, poddata.Pod("a/pod111", "app=app07"))
				expectFresh(t, c)
				cost.since()
				for range 5 {
					require.Equal(t, 10, list())
				}

				elapse(11 * time.Minute) // it has paid in the first ten
				require.Equal(t, []string{"l:app"}, c.Status().AdaptiveIndexes)
				elapse(10 * time.Minute)
				require.Empty(t, c.Status().AdaptiveIndexes)
				require.Zero(t, read("indexes"))
				require.Equal(t, pods, list())
			})
		})
	}
}

// counted returns a configuration change that counts, and a function that
// reads the sum of a metric over its labels.
func counted(t testing.TB) (func(*cacher.Config), func(name string) float64) {
	t.Helper()
	registry := prometheus.NewRegistry()
	m, err := metrics.New(registry)
	require.NoError(t, err)
	return func(c *cacher.Config) { c.Metrics = m }, func(name string) (sum float64) {
		t.Helper()
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, family := range families {
			if family.GetName() != "watchcache_"+name {
				continue
			}
			for _, metric := range family.GetMetric() {
				sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
			}
		}
		return sum
	}
}

// An event is evaluated for the groups that it may affect, however many
// watchers there are: at most once for each selector that it matches, plus
// once for each that names nothing to look it up by.
func TestCandidatesFollowMatches(t *testing.T) {
	const watchers, residual = 800, 3
	store := newStore()
	count, sum := counted(t)
	c := start(t, store, count, func(c *cacher.Config) { c.IndexerFuncs, c.WatchBuffer = poddata.Triggers(), 100 })
	selectors := []func(i int) (label, field, key string, single bool){
		func(i int) (string, string, string, bool) { return fmt.Sprintf("app=app-%d", i), "", "/pods/", false },
		func(i int) (string, string, string, bool) {
			return fmt.Sprintf("app in (app-%d,other-%d)", i, i), "", "/pods/", false
		},
		func(i int) (string, string, string, bool) {
			return "", fmt.Sprintf("spec.nodeName=n-%d", i), "/pods/", false
		},
		func(i int) (string, string, string, bool) {
			return "", fmt.Sprintf("status.phase=p-%d", i), "/pods/", false
		},
		func(i int) (string, string, string, bool) {
			return "", fmt.Sprintf("metadata.name=pod-%d", i), "/pods/", false
		},
		func(i int) (string, string, string, bool) { return "", "", fmt.Sprintf("/pods/ns-%d/", i), false },
		func(i int) (string, string, string, bool) {
			return "", "", fmt.Sprintf("/pods/ns-%d/pod-%d", i, i), true
		},
		func(i int) (string, string, string, bool) {
			return "", fmt.Sprintf("metadata.namespace=ns-%d", i), "/pods/", false
		},
	}
	for i := range watchers {
		label, field, key, single := selectors[i%len(selectors)](i / len(selectors))
		watchPods(t, c, key, "1", selecting(label, field), func(o *storage.ListOptions) { o.Recursive = !single })
	}
	for i := range residual {
		watchPods(t, c, "/pods/", "1", selecting(fmt.Sprintf("app!=none-%d", i), ""))
	}
	allLive(t, c, watchers+residual)

	const events = 50
	for i := range events {
		put(store, poddata.Pod(fmt.Sprintf("ns-%d/pod-%d", i, i), fmt.Sprintf("app=app-%d", i),
			fmt.Sprintf("spec.nodeName=n-%d", i), fmt.Sprintf("status.phase=p-%d", i)))
	}
	until(t, "all is delivered", func() bool {
		return sum("delivered_events_total") == events*float64(len(selectors)+residual)
	})
	got, want := sum("dispatch_evaluations_total"), events*float64(len(selectors)+residual)
	assert.Equal(t, want, got, "as many groups are evaluated for %d events as match", events)
}
