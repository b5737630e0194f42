// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

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
		n := metric("relists_total")
		assert.EqualValues(t, 1, n, "storage was listed %v times", n)
	}, meters)
}

// Regression 21, at its worst: two keys hold objects of one name. The cache
// reports this and goes on, whatever happens to the two: it lists again no more
// often than needed, and ends up with the objects of storage.
func TestTwoKeysOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		meters, metric := metered(t)
		store := newStore(poddata.Pod("a/one"), poddata.Pod("a/two"))
		twin := func() { store.Put("/pods/a/twin", poddata.Pod("a/one", "twin=yes")) }
		twin()
		c := start(t, unstreamed{store}, meters)
		defer c.Stop()
		last := c.Status().LastError
		require.NotNil(t, last, "the status tells no error")
		assert.Contains(t, last.Message, "share a key")
		expectList(t, c, "/pods/", "", "a/one a/two@4")
		const changes = 20
		for range changes {
			put(store, poddata.Pod("a/one"))
			twin()
			elapse(10 * time.Second)
		}
		store.Remove("/pods/a/twin")
		elapse(10 * time.Second)
		put(store, poddata.Pod("a/one"))
		elapse(10 * time.Second)
		pod := &example.Pod{}
		err := c.Get(t.Context(), "/pods/a/one", storage.GetOptions{}, pod)
		require.NoError(t, err)
		assert.Empty(t, pod.Labels["twin"], "the labels are %v", pod.Labels)
		expectList(t, c, "/pods/", "", "a/one a/two@46")
		n := metric("relists_total")
		assert.LessOrEqual(t, n, float64(2+2*changes), "storage was listed %v times for %d changes", n, 2*changes+2)
		before := metric("relists_total")
		elapse(time.Hour)
		n = metric("relists_total")
		assert.Equal(t, before, n, "storage was listed %v times on a quiet resource", n-before)
		t.Logf("storage was listed %v times for %d changes", before, 2*changes+2)
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
				inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
					watches := make([]*podWatch, len(selections))
					for i := range selections {
						at := (first + i) % len(selections)
						watches[at] = watchPods(t, c, "/pods/", "1", func(o *storage.ListOptions) { o.Predicate = selections[at].predicate })
					}
					put(store, poddata.Pod("a/one", "spec.nodeName=n1", "color=red", "size=1"))
					put(store, poddata.Pod("a/two", "spec.nodeName=n2"))
					for i, w := range watches {
						t.Log(selections[i].name)
						expectReceived(t, w, selections[i].want...)
					}
				})
			})
		}
	}
}

// A watch of a namespace, or of any deeper key prefix, is found by the events
// under it, however long its name is and however deep it is; and by no others.
func TestScopesOfEveryLength(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		var namespaces []string
		for n := 1; n <= 63; n++ {
			namespaces = append(namespaces, strings.Repeat("n", n))
		}
		namespaces = append(namespaces, strings.Repeat("long", 60))
		deep := "/pods/"
		for range 20 {
			deep += strings.Repeat("d", 40) + "/"
		}
		var watches, byField []*podWatch
		for _, namespace := range namespaces {
			watches = append(watches, watchPods(t, c, "/pods/"+namespace+"/", "1"))
			byField = append(byField, watchPods(t, c, "/pods/", "1", selecting("", "metadata.namespace="+namespace)))
		}
		deepest := watchPods(t, c, deep, "1")
		synctest.Wait()
		for _, namespace := range namespaces {
			put(store, poddata.Pod(namespace+"/one"))
		}
		last := store.Put(deep+"one", poddata.Pod("deep/one"))
		for i, namespace := range namespaces {
			want := fmt.Sprintf("ADDED %s/one@%d", namespace, i+2)
			expectReceived(t, watches[i], want)
			expectReceived(t, byField[i], want)
		}
		expectReceived(t, deepest, fmt.Sprintf("ADDED deep/one@%d", last))
	}, func(config *cacher.Config) {
		config.KeyFunc = func(obj runtime.Object) (string, error) {
			if metaOf(t, obj).GetNamespace() == "deep" {
				return "/pods/" + strings.Repeat(strings.Repeat("d", 40)+"/", 20) + "one", nil
			}
			return poddata.Key(obj)
		}
	})
}
