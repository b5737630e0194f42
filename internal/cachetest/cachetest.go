// SPDX-License-Identifier: Apache-2.0

// Package cachetest has what the tests of a cache of Pods begin with: the
// storage in memory, the cache over it, and watch events as short lines.
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

// Patience is how long a test waits for what must happen. Only a test that fails
// waits so long; a loaded machine is slow.
const Patience = 3 * time.Minute

// NewStore returns a storage with the pods, at resourceVersions from 2 on.
func NewStore(pods ...*example.Pod) *memstore.Store {
	store := memstore.New(poddata.Prefix, poddata.New)
	for _, pod := range pods {
		Put(store, pod)
	}
	return store
}

// Put writes the pod, which then belongs to the store, and returns its
// resourceVersion.
func Put(store *memstore.Store, pod *example.Pod) uint64 {
	key, err := poddata.Key(pod)
	if err != nil {
		panic(err)
	}
	return store.Put(key, pod)
}

// Config is the configuration of a cache of Pods, with all defaults.
func Config(store storage.Interface) cacher.Config {
	return cacher.Config{
		Storage: store, Versioner: storage.APIObjectVersioner{}, GroupResource: poddata.Resource,
		ResourcePrefix: poddata.Prefix, KeyFunc: poddata.Key, GetAttrsFunc: poddata.Attrs,
		NewFunc: poddata.New, NewListFunc: poddata.NewList, Codec: poddata.Codec(),
		Lists: new(keptlists.Encoder),
	}
}

// Open makes a cache over the store, which ends with the test, and does not
// wait until it is ready.
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

// Start is Open, and waits until the cache is ready.
func Start(t testing.TB, store storage.Interface, change ...func(*cacher.Config)) *cacher.Cacher {
	t.Helper()
	c := Open(t, store, change...)
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	require.NoError(t, c.Wait(ctx))
	return c
}

// Until waits for a condition that nothing signals.
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

// Name is an object as "namespace/name".
func Name(object any) string {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return err.Error()
	}
	return accessor.GetNamespace() + "/" + accessor.GetName()
}

// Line is a watch event as "ADDED namespace/name@5", "BOOKMARK@5" or
// "ERROR 410 Expired". "closed" is what a closed channel gives.
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
