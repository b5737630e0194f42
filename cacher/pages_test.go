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
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

func exactly(o *storage.ListOptions) { o.ResourceVersionMatch = metav1.ResourceVersionMatchExact }

func limited(opts storage.ListOptions, limit int64) storage.ListOptions {
	opts.Predicate.Limit = limit
	return opts
}

func exact(o storage.ListOptions) storage.ListOptions {
	exactly(&o)
	return o
}

// expectReached waits until the cache has reached rv.
func expectReached(t testing.TB, c storage.Interface, rv uint64) {
	t.Helper()
	opts := storage.GetOptions{ResourceVersion: fmt.Sprint(rv), IgnoreNotFound: true}
	require.NoError(t, c.Get(testContext(t), "/pods/nowhere/none", opts, &example.Pod{}))
}

// Regression 93: an earlier version is not made for a client that has gone.
func TestEarlierVersionForNobody(t *testing.T) {
	store := newStore()
	for i := range 8 {
		put(store, poddata.Pod(fmt.Sprintf("a/%d", i)))
	}
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
func registryList(t *testing.T, c storage.Interface, namespace string, opts storage.ListOptions) *example.PodList {
	t.Helper()
	key := "/pods"
	if opts.Predicate.Continue == "" {
		key += "/" + namespace
	}
	pods := &example.PodList{}
	require.NoError(t, c.GetList(testContext(t), key, opts, pods))
	return pods
}

// walk reads all pages of a list.
func walk(t *testing.T, opts storage.ListOptions, page func(storage.ListOptions) *example.PodList) (names string) {
	t.Helper()
	for range 100 {
		pods := page(opts)
		for _, pod := range pods.Items {
			names += pod.Namespace + "/" + pod.Name + " "
		}
		if pods.Continue == "" {
			return names
		}
		opts.ResourceVersion, opts.ResourceVersionMatch = "", ""
		opts.Predicate.Continue = pods.Continue
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
	for name, from := range map[string]struct{ first, rest storage.Interface }{
		"from the cache":                     {c, c},
		"tokens of etcd's storage":           {store, c},
		"tokens of the shipped cacher":       {shippedTokens{store}, c},
		"from storage":                       {gone, gone},
		"from storage, its tokens":           {store, gone},
		"from storage, the shipped cacher's": {shippedTokens{store}, gone},
	} {
		for _, at := range []storage.ListOptions{everything(""), everything("0"), everything(now), exact(everything(now)), notOlder(everything(now))} {
			for _, label := range []string{"", "color=red"} {
				for _, limit := range []int64{1, 2, 500} {
					at.Predicate = poddata.Predicate(label, "metadata.namespace=m")
					all := want
					if label != "" {
						all = wantRed
					}
					got := walk(t, limited(at, limit), func(opts storage.ListOptions) *example.PodList {
						of := from.rest
						if opts.Predicate.Continue == "" {
							of = from.first
						}
						return registryList(t, of, "m", opts)
					})
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
		assert.Equal(t, "m/2@6", lineOf(registryList(t, c, "m", opts)))
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
	assert.Equal(t, "m/1 m/2 m/3 m/4 ", walk(t, opts, func(opts storage.ListOptions) *example.PodList {
		pods := &example.PodList{}
		require.NoError(t, c.GetList(testContext(t), "/pods/", opts, pods))
		return pods
	}))
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
