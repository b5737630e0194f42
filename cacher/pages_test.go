// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// pagedKinds are the ways in which a first page is read: from the latest
// snapshot at any age, from the latest after a version request, and from an
// earlier version; by key and by an index.
var pagedKinds = map[string]storage.ListOptions{
	"any":        limited(everything("0"), 2),
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
			if name == "any" || name == "consistent" {
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

// Regression 19: what storage has compacted is refused on every page, whatever
// is kept.
func TestPagesEndAtACompaction(t *testing.T) {
	store := pagedStore()
	c := start(t, store)
	_, first := list(t, c, "/pods/", "0", func(o *storage.ListOptions) { o.Predicate.Limit = 2 })
	put(store, poddata.Pod("a/8"))
	store.Compact(10)
	opts := limited(everything(""), 2)
	opts.Predicate.Continue = first.Continue
	err := c.GetList(testContext(t), "/pods/", opts, &example.PodList{})
	assert.True(t, apierrors.IsResourceExpired(err), "got %v", err)
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
