// SPDX-License-Identifier: Apache-2.0

// Package cachetest contains helpers for tests of a cache of Pods: an in-memory storage, the cache
// over it, and watch events formatted as lines.
package cachetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/keptlists"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// Patience is how long tests wait for an expected event. Only failing tests wait so long, unless
// the machine is loaded.
const Patience = 3 * time.Minute

// NewStore returns a storage with the pods, at resourceVersions from 2.
func NewStore(pods ...*example.Pod) *memstore.Store {
	store := memstore.New(poddata.Prefix, poddata.New)
	for _, pod := range pods {
		Put(store, pod)
	}
	return store
}

// Put writes a pod and returns its resourceVersion. The store then owns the pod.
func Put(store *memstore.Store, pod *example.Pod) uint64 {
	key, err := poddata.Key(pod)
	if err != nil {
		panic(err)
	}
	return store.Put(key, pod)
}

// Config returns the configuration of a cache of Pods, with defaults.
func Config(store storage.Interface) cacher.Config {
	return cacher.Config{
		Storage: store, Versioner: storage.APIObjectVersioner{}, GroupResource: poddata.Resource,
		ResourcePrefix: poddata.Prefix, KeyFunc: poddata.Key, GetAttrsFunc: poddata.Attrs,
		NewFunc: poddata.New, NewListFunc: poddata.NewList, Codec: poddata.Codec(),
		Lists: new(keptlists.Encoder),
	}
}

// Open creates a cache over the store without waiting until it is ready. The cache stops when the
// test ends.
func Open(t testing.TB, store storage.Interface, change ...func(*cacher.Config)) *cacher.Cacher {
	t.Helper()
	config := Config(store)
	for _, change := range change {
		change(&config)
	}
	c, err := cacher.New(config)
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	return c
}

// Start is Open, but waits until the cache is ready.
func Start(t testing.TB, store storage.Interface, change ...func(*cacher.Config)) *cacher.Cacher {
	t.Helper()
	c := Open(t, store, change...)
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	require.NoError(t, c.Wait(ctx))
	return c
}

// Until polls a condition.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(Patience)
	for !holds() {
		select {
		case <-deadline:
			require.FailNow(t, "never happens", what)
		case <-time.After(time.Millisecond):
		}
	}
}

// Name formats an object as "namespace/name".
func Name(object any) string {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return err.Error()
	}
	return accessor.GetNamespace() + "/" + accessor.GetName()
}

// Line formats a watch event as "ADDED namespace/name@5", "BOOKMARK@5", "ERROR 410 Expired", or
// "closed" for the zero event of a closed channel.
func Line(event watch.Event) string {
	if event.Type == "" {
		return "closed"
	}
	if status, ok := event.Object.(*metav1.Status); ok {
		return fmt.Sprintf("%s %d %s", event.Type, status.Code, status.Reason)
	}
	object := event.Object
	if cached, ok := object.(runtime.CacheableObject); ok {
		object = cached.GetObject()
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return err.Error()
	}
	if event.Type == watch.Bookmark {
		end := ""
		if accessor.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			end = " end of initial events"
		}
		return fmt.Sprintf("BOOKMARK@%s%s", accessor.GetResourceVersion(), end)
	}
	return fmt.Sprintf("%s %s@%s", event.Type, Name(object), accessor.GetResourceVersion())
}
