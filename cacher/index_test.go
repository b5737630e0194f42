// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
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

// listCost returns a function that says how many objects LISTs have looked at since the
// last call, and how many they have returned.
func listCost(read func(series string) float64) (since func() (looked, returned int)) {
	var before [2]float64
	return func() (looked, returned int) {
		now := [2]float64{read("list_evaluated_objects_total"), read("list_returned_objects_total")}
		looked, returned = int(now[0]-before[0]), int(now[1]-before[1])
		before = now
		return looked, returned
	}
}

// A LIST looks at nothing but what an index, the namespace or the key prefix
// leaves; at the latest version and at an earlier one, whole and by its first page.
func TestListLooksAtMatchesOnly(t *testing.T) {
	meters, read := metered(t)
	store := newCrowd()
	c := start(t, store, meters, withLabels("app", "size"), withIndexers(cache.Indexers{storage.FieldIndex("spec.nodeName"): byNode}))
	then := fmt.Sprint(crowd + 1)
	// From here on versions differ: one of app07 and one of app08 have gone.
	store.Remove("/pods/ns00/pod00700")
	store.Remove("/pods/ns00/pod00800")
	expectFresh(t, c)
	since := listCost(read)
	since()

	for _, tc := range []struct {
		name, key, label, field string
		then, now, looks        int // looks < 0: as many as match
	}{
		{"label", "/pods/", "app=app07", "", 200, 199, -1},
		{"label without objects", "/pods/", "app=none", "", 0, 0, -1},
		{"field", "/pods/", "", "spec.nodeName=n003", 50, 50, -1},
		{"set", "/pods/", "app in (app07,app08,none)", "", 400, 398, -1},
		{"label and namespace", "/pods/ns05/", "app=app07", "", 2, 2, -1},
		{"set and namespace", "/pods/ns00/", "app in (app07,app08)", "", 4, 2, -1},
		{"the field narrower than the label", "/pods/", "app=app08", "spec.nodeName=n000", 2, 1, 50},
		{"the label narrower than the other one", "/pods/", "size=1,app=app07", "", 100, 100, 200},
		{"the set narrower than the label", "/pods/", "size=0,app in (app07,app08)", "", 200, 198, 400},
		{"two sets of one label", "/pods/", "app in (app07,app08,app09,app10),app in (app08,app11)", "", 200, 199, 400},
		{"the namespace as a field", "/pods/", "", "metadata.namespace=ns05", 200, 200, crowd},
		{"the namespace as a field and a label", "/pods/", "app=app07", "metadata.namespace=ns00", 2, 1, 200},
		{"the name as a field", "/pods/ns05/", "", "metadata.name=pod00005", 1, 1, 200},
		{"nothing", "/pods/", "app=app07,app=app08", "", 0, 0, 200},
		{"not", "/pods/ns05/", "app!=app07", "", 198, 198, 200},
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
				looked, returned := since()
				// Objects that were deleted since are not looked at any more.
				most := max(tc.looks, at.want)
				require.Len(t, pods.Items, at.want, "rv=%q", at.rv)
				assert.Equal(t, at.want, returned, "rv=%q: the objects that are counted as returned", at.rv)
				assert.LessOrEqual(t, looked, most, "rv=%q: the objects that were looked at", at.rv)
				assert.GreaterOrEqual(t, looked, at.want, "rv=%q: the objects that were looked at", at.rv)
				if tc.looks < 0 {
					assert.Equal(t, at.want, looked, "rv=%q: the objects that were looked at", at.rv)
				}
				if at.rv == "0" {
					continue // which has no pages
				}
				stored := &example.PodList{}
				require.NoError(t, store.GetList(testContext(t), tc.key, opts, stored))
				assert.Equal(t, lineOf(stored), lineOf(pods), "rv=%q", at.rv)
				opts.Predicate.Limit = 60
				expectCount(t, c, tc.key, at.rv, min(60, at.want), func(o *storage.ListOptions) { *o = opts })
				if looked, returned = since(); tc.looks < 0 {
					assert.LessOrEqual(t, looked, returned+1, "rv=%q: the objects that a page has looked at", at.rv)
				}
			}
		})
	}
}

// expectFresh waits for the cache to have what the store has.
func expectFresh(t testing.TB, c *cacher.Cacher) {
	t.Helper()
	list(t, c, "/pods/", "", func(o *storage.ListOptions) { o.Predicate.Limit = 1 })
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
	assert.EqualValues(t, 2, read("list_evaluated_objects_total"), "the objects that were looked at")
	stray := store.Put("/pods/elsewhere", poddata.Pod("a/stray"))
	expectList(t, c, "/pods/", "", "a/one a/stray@4", selecting("", "metadata.namespace=a"))
	store.Remove("/pods/elsewhere")
	expectList(t, c, "/pods/", "", "a/one@5", selecting("", "metadata.namespace=a"))
	expectList(t, c, "/pods/", fmt.Sprint(stray), "a/one a/stray@4", selecting("", "metadata.namespace=a"), exactly)
	before := read("list_evaluated_objects_total")
	expectList(t, c, "/pods/", "", "a/one@5", selecting("", "metadata.namespace=a"))
	assert.EqualValues(t, 2, read("list_evaluated_objects_total")-before, "the objects that were looked at after the stray one had gone")
}

// What LISTs ask for again and again gets an index, which Status and the metrics show, and
// which goes when nobody has asked for ten minutes; unless the configuration has no room
// for any. cacher/internal/match has the rules.
func TestAdaptiveIndexes(t *testing.T) {
	const pods = 500
	store := func() *memstore.Store {
		store := newStore()
		for i := range pods {
			put(store, poddata.Pod(fmt.Sprintf("a/pod%03d", i), fmt.Sprintf("app=app%02d", i/10)))
		}
		return store
	}
	for name, test := range map[string]struct {
		configure func(*cacher.Config)
		built     bool
	}{
		"default":    {func(*cacher.Config) {}, true},
		"none":       {func(c *cacher.Config) { c.AdaptiveIndexes = -1 }, false},
		"no room":    {func(c *cacher.Config) { c.AdaptivePercent = 1 }, false},
		"sufficient": {func(c *cacher.Config) { c.AdaptivePercent, c.AdaptiveIndexes = 100, 1 }, true},
	} {
		t.Run(name, func(t *testing.T) {
			meters, read := metered(t)
			inBubble(t, store, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				since := listCost(read)
				looksAt := func(want int) {
					t.Helper()
					since()
					expectCount(t, c, "/pods/", "0", 10, selecting("app=app07", ""))
					looked, _ := since()
					require.Equal(t, want, looked)
				}
				for range 40 {
					looksAt(pods)
				}
				elapse(2 * time.Second)
				if !test.built {
					require.Empty(t, c.Status().AdaptiveIndexes)
					looksAt(pods)
					return
				}
				require.Equal(t, []string{"l:app"}, c.Status().AdaptiveIndexes)
				require.Equal(t, 1.0, read("indexes"))
				looksAt(10)
				require.Equal(t, map[string]uint64{"keys": 40, "other": 1}, c.Status().Totals.ReadsByIndex)
				put(store, poddata.Pod("a/pod070"))
				put(store, poddata.Pod("a/pod111", "app=app07"))
				expectFresh(t, c)
				for range 5 {
					looksAt(10)
				}
				elapse(11 * time.Minute) // it has paid in the first ten
				require.Equal(t, []string{"l:app"}, c.Status().AdaptiveIndexes)
				elapse(10 * time.Minute)
				require.Empty(t, c.Status().AdaptiveIndexes)
				require.Zero(t, read("indexes"))
				looksAt(pods)
			}, meters, test.configure)
		})
	}
}

// Regression 21: an object that storage has under a key that is not that of its
// name is served under its name, and storage is not listed over and over.
func TestMisfiledObject(t *testing.T) {
	meters, metric := metered(t)
	misfile := func(store *memstore.Store, attrs ...string) {
		store.Put("/pods/a/misfiled", poddata.Pod("a/one", attrs...))
	}
	inBubble(t, func() *memstore.Store { store := newStore(); misfile(store); return store }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		expectList(t, c, "/pods/", "", "a/one@2")
		misfile(store, "x=y")
		expectList(t, c, "/pods/", "", "a/one@3", selecting("x=y", ""))
		elapse(time.Hour)
		store.Remove("/pods/a/misfiled")
		expectList(t, c, "/pods/", "", "@4")
		assert.EqualValues(t, 1, metric("relists_total"), "how often storage was listed")
	}, meters)
}

// Regression 21, at its worst: two keys hold objects of one name. The cache
// reports this and goes on, whatever happens to the two: GETs are answered as storage has
// it, the cache lists again no more often than needed, and ends up with the objects of
// storage.
func TestTwoKeysOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		meters, metric := metered(t)
		store := newStore(poddata.Pod("a/one"), poddata.Pod("a/two"))
		twin := func() { store.Put("/pods/a/twin", poddata.Pod("a/one", "twin=yes")) }
		twin()
		c := start(t, store, meters)
		defer c.Stop()
		last := c.Status().LastError
		require.NotNil(t, last, "the status tells no error")
		assert.Contains(t, last.Message, "share a key")
		expectList(t, c, "/pods/", "", "a/one a/two@4")
		const changes = 20
		for range changes {
			rv := put(store, poddata.Pod("a/one"))
			twin()
			elapse(10 * time.Second)
			expectRead(t, after(goGet(t.Context(), c, "/pods/a/one", "")), fmt.Sprintf("a/one@%d", rv))
		}
		store.Remove("/pods/a/twin")
		elapse(10 * time.Second)
		put(store, poddata.Pod("a/one"))
		elapse(10 * time.Second)
		expectRead(t, after(goGet(t.Context(), c, "/pods/a/one", "")), "a/one@46")
		expectList(t, c, "/pods/", "", "a/one a/two@46")
		before := metric("relists_total")
		assert.LessOrEqual(t, before, float64(2+2*changes), "how often storage was listed for %d changes", 2*changes+2)
		elapse(time.Hour)
		assert.Equal(t, before, metric("relists_total"), "storage was listed on a quiet resource")
	})
}

// REGRESSIONS 104: a key that is not under the resource's prefix, whatever it
// is, stops nothing: it is reported, no read and no watch reaches it, and the
// other objects are served.
func TestKeyOutsideThePrefix(t *testing.T) {
	for _, key := range []string{"", "/", "x", "/pods", "/podsa/stray", "/elsewhere/in/the/storage", "/zzz"} {
		t.Run(key, func(t *testing.T) {
			for name, listed := range map[string]bool{"listed": true, "watched": false} {
				t.Run(name, func(t *testing.T) {
					strayKey := func(c *cacher.Config) {
						c.KeyFunc = func(obj runtime.Object) (string, error) {
							if metaOf(t, obj).GetName() == "stray" {
								return key, nil
							}
							return poddata.Key(obj)
						}
					}
					inBubble(t, func() *memstore.Store {
						store := newStore(poddata.Pod("a/one"))
						if listed {
							put(store, poddata.Pod("a/stray"))
						}
						return store
					}, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
						all, scoped := watchPods(t, c, "/pods/", "0"), watchPods(t, c, "/pods/a/", "0")
						expectReceived(t, all, "ADDED a/one@2")
						expectReceived(t, scoped, "ADDED a/one@2")
						put(store, poddata.Pod("a/stray", "x=y"))
						put(store, poddata.Pod("a/two"))
						store.Remove("/pods/a/stray")
						last := put(store, poddata.Pod("a/three"))
						want := []string{"ADDED a/two@" + fmt.Sprint(last-2), "ADDED a/three@" + fmt.Sprint(last)}
						expectReceived(t, all, want...)
						expectReceived(t, scoped, want...)
						expectList(t, c, "/pods/", "", "a/one a/three a/two@"+fmt.Sprint(last))
						e := c.Status().LastError
						require.NotNil(t, e, "the status tells no error")
						assert.Contains(t, e.Message, "ResourcePrefix")
					}, strayKey)
				})
			}
		})
	}
}

// alike are selections whose selectors have the same strings, and what each is
// to be told of the pods that alikePods writes.
var alike = map[string][]struct {
	name      string
	predicate storage.SelectionPredicate
	want      []string
}{
	"a label selector of nothing": {
		{"all", by(labels.Everything(), fields.Everything()), []string{"ADDED a/one@2", "ADDED a/two@3"}},
		{"nothing", by(labels.Nothing(), fields.Everything()), nil},
		{"nothing, by the set", by(labels.SelectorFromSet(labels.Set{}), fields.Everything()), []string{"ADDED a/one@2", "ADDED a/two@3"}},
	},
	"a field selector of nothing": {
		{"nothing", by(labels.Everything(), fields.Nothing()), nil},
		{"all", by(labels.Everything(), fields.Everything()), []string{"ADDED a/one@2", "ADDED a/two@3"}},
		{"no selectors", storage.SelectionPredicate{GetAttrs: poddata.Attrs}, []string{"ADDED a/one@2", "ADDED a/two@3"}},
	},
	"a conjunction with nothing": {
		{"with all", by(labels.Everything(), fields.AndSelectors(fields.Everything(), node("n1"))), []string{"ADDED a/one@2"}},
		{"with nothing", by(labels.Everything(), fields.AndSelectors(fields.Nothing(), node("n1"))), nil},
	},
	"a conjunction of nothing": {
		{"nothing", by(labels.Everything(), fields.AndSelectors(fields.Nothing())), nil},
		{"all", by(labels.Everything(), fields.AndSelectors(fields.Everything())), []string{"ADDED a/one@2", "ADDED a/two@3"}},
	},
	"a name with an operator in it": {
		{"another field", by(labels.Everything(), fields.OneTermEqualSelector("spec.nodeName!", "n2")), nil},
		{"not the value", by(labels.Everything(), fields.OneTermNotEqualSelector("spec.nodeName", "n2")), []string{"ADDED a/one@2"}},
	},
	"a set's value with an operator in it": {
		{"one label", by(labels.SelectorFromValidatedSet(labels.Set{"color": "red,size=1"}), fields.Everything()), nil},
		{"two labels", by(labels.SelectorFromValidatedSet(labels.Set{"color": "red", "size": "1"}), fields.Everything()), []string{"ADDED a/one@2"}},
	},
}

func by(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
	return storage.SelectionPredicate{Label: label, Field: field, GetAttrs: poddata.Attrs}
}

func node(name string) fields.Selector { return fields.OneTermEqualSelector("spec.nodeName", name) }

// REGRESSIONS 90: watchers share an evaluation only if their selectors mean the
// same, whatever the selectors call themselves, and whoever comes first.
func TestSelectorsAreToldApartByMeaning(t *testing.T) {
	for name, selections := range alike {
		for first := range selections {
			t.Run(name+", first "+selections[first].name, func(t *testing.T) {
				inBubble(t, noPods, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
					watches := make([]*podWatch, len(selections))
					for i := range selections {
						at := (first + i) % len(selections)
						watches[at] = watchPods(t, c, "/pods/", "1", func(o *storage.ListOptions) { o.Predicate = selections[at].predicate })
					}
					put(store, poddata.Pod("a/one", "spec.nodeName=n1", "color=red", "size=1"))
					put(store, poddata.Pod("a/two", "spec.nodeName=n2"))
					for i, w := range watches {
						expectReceived(t, w, selections[i].want...)
						_, pods := list(t, c, "/pods/", "", func(o *storage.ListOptions) { o.Predicate = selections[i].predicate })
						assert.NotNil(t, pods.Items, "nil encodes as null")
						assert.Len(t, pods.Items, len(selections[i].want))
					}
				})
			})
		}
	}
}
