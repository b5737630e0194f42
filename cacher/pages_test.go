// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// pagedKinds are the ways in which a first page is read: from the latest
// snapshot at some age, from the latest after a version request, and from an
// earlier version; by key and by an index.
var pagedKinds = map[string]storage.ListOptions{
	"not older":  notOlder(limited(everything("9"), 2)),
	"consistent": limited(everything(""), 2),
	"exact":      exact(limited(everything("9"), 2)),
	"by index":   limited(storage.ListOptions{Predicate: poddata.Predicate("app=1", ""), Recursive: true}, 2),
	"exact, by index": exact(limited(storage.ListOptions{
		ResourceVersion: "9", Predicate: poddata.Predicate("app=1", ""), Recursive: true,
	}, 2)),
}

func exact(o storage.ListOptions) storage.ListOptions {
	exactly(&o)
	return o
}

// pagedStore has eight pods, /pods/a/0 to /pods/a/7, at 2 to 9.
func pagedStore() *memstore.Store {
	store := newStore()
	for i := range 8 {
		put(store, poddata.Pod(fmt.Sprintf("a/%d", i), "app=1"))
	}
	return store
}

// walk reads the pages of a list, and calls between before each but the first.
func walk(t *testing.T, c storage.Interface, opts storage.ListOptions, between func(rv string)) string {
	t.Helper()
	var names []string
	for {
		pods := &example.PodList{}
		require.NoError(t, c.GetList(testContext(t), "/pods/", opts, pods))
		for _, pod := range pods.Items {
			names = append(names, pod.Name+"@"+pod.ResourceVersion)
		}
		if pods.Continue == "" {
			return strings.Join(names, " ")
		}
		between(pods.ResourceVersion)
		opts.ResourceVersion, opts.ResourceVersionMatch = "", ""
		opts.Predicate.Continue = pods.Continue
	}
}

// Regressions 50 and 94: the pages of a list are of one version, have each item
// once and come from the cache, though the window has left that version behind
// before the second page is asked for.
func TestPagesOutliveTheWindow(t *testing.T) {
	for name, opts := range pagedKinds {
		t.Run(name, func(t *testing.T) {
			store := pagedStore()
			c := start(t, store, withLabels("app"), func(c *cacher.Config) { c.WindowBytes = 1 })
			put(store, poddata.Pod("b/0", "app=2"))
			expectList(t, c, "/pods/b/", "10", "b/0@10")
			lists := store.Requests()["list"]
			got := walk(t, c, opts, func(string) {
				for i := range 8 {
					put(store, poddata.Pod(fmt.Sprintf("a/%d", i), "app=1"))
					put(store, poddata.Pod(fmt.Sprintf("a/%d-%d", i, store.Touch()), "app=1"))
				}
				// Once the dispatcher has them, events leave the window with the next one.
				until(t, "the window leaves the version behind", func() bool {
					expectReached(t, c, put(store, poddata.Pod("b/0", "app=2")))
					return c.Status().OldestResourceVersion > 10
				})
			})
			want := "0@2 1@3 2@4 3@5 4@6 5@7 6@8 7@9"
			if name == "not older" || name == "consistent" {
				want += " 0@10"
			}
			assert.Equal(t, want, got)
			n := store.Requests()["list"] - lists
			assert.Zero(t, n, "storage was asked for %d pages", n)
		})
	}
}

// expectReached waits until the cache has reached rv.
func expectReached(t testing.TB, c storage.Interface, rv uint64) {
	t.Helper()
	opts := storage.GetOptions{ResourceVersion: fmt.Sprint(rv), IgnoreNotFound: true}
	require.NoError(t, c.Get(testContext(t), "/pods/nowhere/none", opts, &example.Pod{}))
}

// Regression 93: an earlier version is not made for a client that has gone.
func TestEarlierVersionForNobody(t *testing.T) {
	store := pagedStore()
	c := start(t, store)
	put(store, poddata.Pod("a/8"))
	put(store, poddata.Pod("a/9"))
	expectReached(t, c, 11)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.ErrorIs(t, c.GetList(ctx, "/pods/", exact(everything("10")), &example.PodList{}), context.Canceled)
	expectList(t, c, "/pods/a/", "10", "a/0 a/1 a/2 a/3 a/4 a/5 a/6 a/7 a/8@10", exactly)
}

// registryList lists pods of all namespaces as a registry of k8s.io/apiserver does for
// a client: a field selector that requires a namespace narrows the first page to that
// namespace's key, and no page that a token asks for.
func registryList(t *testing.T, c storage.Interface, namespace string, opts storage.ListOptions) (*example.PodList, error) {
	key := "/pods"
	if opts.Predicate.Continue == "" {
		key += "/" + namespace
	}
	pods := &example.PodList{}
	return pods, c.GetList(testContext(t), key, opts, pods)
}

// registryWalk reads all pages as registryList does, the first one from another
// storage if first is not nil.
func registryWalk(t *testing.T, c, first storage.Interface, namespace string, opts storage.ListOptions) (names string) {
	t.Helper()
	from := c
	if first != nil {
		from = first
	}
	for range 100 {
		pods, err := registryList(t, from, namespace, opts)
		require.NoError(t, err)
		for _, pod := range pods.Items {
			names += pod.Namespace + "/" + pod.Name + " "
		}
		if pods.Continue == "" {
			return names
		}
		opts.ResourceVersion, opts.ResourceVersionMatch = "", ""
		opts.Predicate.Continue = pods.Continue
		from = c
	}
	return "has no end: " + names
}

// shippedTokens is a storage whose tokens look like the shipped cacher's: relative to
// the key without its last slash.
type shippedTokens struct{ storage.Interface }

func (s shippedTokens) GetList(ctx context.Context, key string, opts storage.ListOptions, into runtime.Object) error {
	if err := s.Interface.GetList(ctx, key, opts, into); err != nil {
		return err
	}
	pods := into.(*example.PodList)
	if pods.Continue == "" {
		return nil
	}
	from, rv, err := storage.DecodeContinue(pods.Continue, strings.TrimSuffix(key, "/")+"/")
	if err == nil {
		pods.Continue, err = storage.EncodeContinue(from, strings.TrimSuffix(key, "/"), rv)
	}
	return err
}

// Regression 139: a LIST of all namespaces whose field selector requires one brings
// each object once, in pages of any size, wherever the pages and their tokens come from.
func TestPagesNarrowedByARegistry(t *testing.T) {
	store := newStore()
	var want, wantRed string
	for _, namespace := range []string{"a", "m", "z"} { // names before, beside and behind
		for i, name := range []string{"a", "b", "m", "y", "z"} {
			put(store, poddata.Pod(namespace+"/"+name, fmt.Sprintf("color=%s", []string{"red", "blue"}[i%2])))
			if namespace == "m" {
				want += "m/" + name + " "
				if i%2 == 0 {
					wantRed += "m/" + name + " "
				}
			}
		}
	}
	c := start(t, store)
	now := fmt.Sprint(c.Status().ResourceVersion)
	gone := start(t, store, func(c *cacher.Config) { c.WindowBytes = 1 })
	last := uint64(0)
	until(t, "the window leaves the version behind", func() bool {
		last = put(store, poddata.Pod("other/one"))
		expectReached(t, gone, last)
		return fmt.Sprint(gone.Status().OldestResourceVersion) > now
	})
	expectReached(t, c, last)
	for name, walk := range map[string]struct{ c, first storage.Interface }{
		"from the cache":                     {c, nil},
		"tokens of etcd's storage":           {c, store},
		"tokens of the shipped cacher":       {c, shippedTokens{store}},
		"from storage":                       {gone, nil},
		"from storage, its tokens":           {gone, store},
		"from storage, the shipped cacher's": {gone, shippedTokens{store}},
	} {
		for _, at := range []storage.ListOptions{everything(""), everything("0"), everything(now), exact(everything(now)), notOlder(everything(now))} {
			for _, label := range []string{"", "color=red"} {
				for _, limit := range []int64{1, 2, 500} {
					at.Predicate = poddata.Predicate(label, "metadata.namespace=m")
					all := want
					if label != "" {
						all = wantRed
					}
					got := registryWalk(t, walk.c, walk.first, "m", limited(at, limit))
					assert.Equal(t, all, got, "%s, at %q %s, %q, by %d", name, at.ResourceVersion, at.ResourceVersionMatch, label, limit)
				}
			}
		}
	}
}

func notOlder(o storage.ListOptions) storage.ListOptions {
	o.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	return o
}

// Regression 139: a token that is relative to all namespaces stays so: the client has
// begun without the selector, or the shipped cacher has read the page before.
func TestPagesOfAllNamespacesGoOnInOne(t *testing.T) {
	store := newStore()
	for _, name := range []string{"a/1", "a/2", "m/1", "m/2", "z/1"} {
		put(store, poddata.Pod(name))
	}
	c := start(t, store)
	for _, from := range []storage.Interface{c, store, shippedTokens{store}} {
		pods := &example.PodList{}
		require.NoError(t, from.GetList(testContext(t), "/pods", limited(everything(""), 3), pods))
		opts := limited(storage.ListOptions{Predicate: poddata.Predicate("", "metadata.namespace=m"), Recursive: true}, 1)
		opts.Predicate.Continue = pods.Continue
		rest, err := registryList(t, c, "m", opts)
		require.NoError(t, err)
		assert.Equal(t, "m/2@6", lineOf(rest))
	}
}

// Regression 139: nothing is narrowed where a resource's keys have no namespaces.
func TestPagesOfKeysWithoutNamespaces(t *testing.T) {
	store := newStore()
	flat := func(object runtime.Object) (string, error) { return "/pods/" + metaOf(t, object).GetName(), nil }
	for _, name := range []string{"1", "2", "3", "4"} {
		store.Put("/pods/"+name, poddata.Pod("m/"+name))
	}
	c := start(t, store, func(c *cacher.Config) { c.KeyFunc = flat })
	opts := limited(storage.ListOptions{Predicate: poddata.Predicate("", "metadata.namespace=m"), Recursive: true}, 1)
	assert.Equal(t, "1@2 2@3 3@4 4@5", walk(t, c, opts, func(string) {}))
}

// Regression 155: a page has the same token as the shipped cacher's, byte by byte.
func TestTokensAreThoseOfTheShippedCacher(t *testing.T) {
	store := newStore(poddata.Pod("a/1"), poddata.Pod("a/2"), poddata.Pod("b/1"))
	c := start(t, store)
	for key, last := range map[string]string{"/pods": "/pods/a/2", "/pods/": "/pods/a/2", "/pods/a": "/pods/a/1", "/pods/a/": "/pods/a/1"} {
		limit := int64(2)
		if strings.Contains(key, "a") {
			limit = 1
		}
		pods := &example.PodList{}
		require.NoError(t, c.GetList(testContext(t), key, limited(everything(""), limit), pods))
		want, err := storage.EncodeContinue(last+"\x00", key, 4)
		require.NoError(t, err)
		assert.Equal(t, want, pods.Continue, key)
	}
}
