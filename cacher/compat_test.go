// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	shipped "k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	moved "github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// A decorator that was written for the shipped cacher, over a storage of its own:
// once with that import, once with ours. Nothing else is different between the
// two, and both serve.
func TestMovedDecorator(t *testing.T) {
	var raw generic.StorageDecorator = func(_ *storagebackend.ConfigForResource, prefix string, _ func(runtime.Object) (string, error),
		newObject, _ func() runtime.Object, _ storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		return memstore.New(prefix, newObject), func() {}, nil
	}
	before := func(config *storagebackend.ConfigForResource, prefix string, keyOf func(runtime.Object) (string, error),
		newObject, newList func() runtime.Object, attrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		store, destroy, err := raw(config, prefix, keyOf, newObject, newList, attrs, triggers, indexers)
		if err != nil {
			return nil, nil, err
		}
		c, err := shipped.NewCacherFromConfig(shipped.Config{
			Storage: store, Versioner: storage.APIObjectVersioner{}, GroupResource: config.GroupResource,
			EventsHistoryWindow: config.EventsHistoryWindow, ResourcePrefix: prefix, KeyFunc: keyOf, GetAttrsFunc: attrs,
			IndexerFuncs: triggers, Indexers: indexers, NewFunc: newObject, NewListFunc: newList, Codec: config.Codec,
		})
		if err != nil {
			return nil, nil, err
		}
		delegator := shipped.NewCacheDelegator(c, store)
		return delegator, func() { delegator.Stop(); c.Stop(); destroy() }, nil
	}
	after := func(config *storagebackend.ConfigForResource, prefix string, keyOf func(runtime.Object) (string, error),
		newObject, newList func() runtime.Object, attrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		store, destroy, err := raw(config, prefix, keyOf, newObject, newList, attrs, triggers, indexers)
		if err != nil {
			return nil, nil, err
		}
		c, err := moved.NewCacherFromConfig(moved.Config{
			Storage: store, Versioner: storage.APIObjectVersioner{}, GroupResource: config.GroupResource,
			EventsHistoryWindow: config.EventsHistoryWindow, ResourcePrefix: prefix, KeyFunc: keyOf, GetAttrsFunc: attrs,
			IndexerFuncs: triggers, Indexers: indexers, NewFunc: newObject, NewListFunc: newList, Codec: config.Codec,
		})
		if err != nil {
			return nil, nil, err
		}
		delegator := moved.NewCacheDelegator(c, store)
		return delegator, func() { delegator.Stop(); c.Stop(); destroy() }, nil
	}
	for name, decorate := range map[string]generic.StorageDecorator{"before": before, "after": after} {
		t.Run(name, func(t *testing.T) {
			ours, destroy, err := askedFor(func(a *asked) {
				a.triggers = nil
			}).of(decorate)
			require.NoError(t, err)
			defer destroy()
			pod := poddata.Pod("a/one")
			require.NoError(t, ours.Create(testContext(t), "/pods/a/one", pod, nil, 0))
			until(t, "the cache is ready", func() bool { return ours.ReadinessCheck() == nil })
			expectList(t, ours, "/pods/", "", "a/one@2")
		})
	}
}
