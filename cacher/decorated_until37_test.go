// SPDX-License-Identifier: Apache-2.0

//go:build !k8s38

package cacher_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/keptlists"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// Registries have a Decorator up to Kubernetes 1.37.

// decorated watches all pods through a registry whose Decorator puts a node into
// those that it sees.
func decorated(t *testing.T, ctx context.Context, c *cacher.Cacher, node string) watch.Interface {
	t.Helper()
	store := &genericregistry.Store{
		Storage:     genericregistry.DryRunnableStorage{Storage: c},
		KeyRootFunc: func(context.Context) string { return poddata.Prefix },
		KeyFunc:     func(_ context.Context, name string) (string, error) { return poddata.Prefix + name, nil },
		Decorator: func(object runtime.Object) {
			if pod, ok := object.(*example.Pod); ok {
				pod.Spec.NodeName = node
			}
		},
	}
	w, err := store.WatchPredicate(ctx, storage.Everything, "0", nil)
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	return w
}

// REGRESSIONS 107: initial events reach a registry's Decorator as objects of its own. Its
// changes do not reach the cache, or the watches that share initial events.
func TestDecoratorSeesInitialEvents(t *testing.T) {
	store := newStore(poddata.Pod("a/one"))
	c := start(t, store)
	watches := map[string]watch.Interface{}
	for _, node := range []string{"n1", "n2"} {
		plain := watchPods(t, c, "/pods/", "0")
		shared, ok := (<-plain.ResultChan()).Object.(runtime.CacheableObject)
		require.True(t, ok)
		require.Empty(t, shared.GetObject().(*example.Pod).Spec.NodeName)
		w, err := c.Watch(t.Context(), "/pods/", everything("0"))
		require.NoError(t, err)
		t.Cleanup(w.Stop)
		require.Empty(t, (<-w.ResultChan()).Object.(*example.Pod).Spec.NodeName)
		watches[node] = decorated(t, t.Context(), c, node)
		require.Equal(t, node, (<-watches[node].ResultChan()).Object.(*example.Pod).Spec.NodeName)
	}
	store.Put("/pods/a/two", poddata.Pod("a/two"))
	for _, w := range watches {
		event := <-w.ResultChan()
		_, ok := event.Object.(runtime.CacheableObject)
		require.True(t, ok, "later events share: %v %v", event.Type, event.Object)
	}
}

// A decorated watch that nobody reads ends with its request and with the cache.
func TestDecoratedWatchEnds(t *testing.T) {
	c := start(t, newStore(poddata.Pod("a/one"), poddata.Pod("a/two")))
	ctx, cancel := context.WithCancel(t.Context())
	first := decorated(t, ctx, c, "n1")
	second := decorated(t, t.Context(), c, "n1")
	third := decorated(t, t.Context(), c, "n1")
	cancel()
	second.Stop()
	for range first.ResultChan() {
	}
	for range second.ResultChan() {
	}
	c.Stop() // returns
	for range third.ResultChan() {
	}
}

// A registry with a Decorator does not return the watch of a cache as it is.
func TestReturnsNoDecoratedWatches(t *testing.T) {
	c := start(t, newStore(poddata.Pod("a/one")))
	var lists keptlists.Encoder
	same, other := lists.ReturnsWatches(t.Context(), func(ctx context.Context) (watch.Interface, error) { return decorated(t, ctx, c, "n1"), nil })
	require.False(t, same)
	require.True(t, other)
	require.Empty(t, c.Status().Ended, "no watch was opened")
}
