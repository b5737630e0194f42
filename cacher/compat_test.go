// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	shipped "k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	moved "github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// A decorator that was written for the shipped cacher, over a storage of its own:
// once with that import, once with ours. Nothing else is different between the
// two, and both serve.
func TestMovedDecorator(t *testing.T) {
	before := decoration.Decorator(func(r decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
		store := memstore.New(r.ResourcePrefix, r.NewFunc)
		c, err := shipped.NewCacherFromConfig(shipped.Config{
			Storage: store, Versioner: storage.APIObjectVersioner{}, GroupResource: r.Config.GroupResource,
			EventsHistoryWindow: r.Config.EventsHistoryWindow, ResourcePrefix: r.ResourcePrefix, KeyFunc: r.KeyFunc, GetAttrsFunc: r.GetAttrsFunc,
			IndexerFuncs: r.IndexerFuncs, Indexers: r.Indexers, NewFunc: r.NewFunc, NewListFunc: r.NewListFunc, Codec: r.Config.Codec,
		})
		if err != nil {
			return nil, nil, err
		}
		delegator := shipped.NewCacheDelegator(c, store)
		return delegator, func() { delegator.Stop(); c.Stop() }, nil
	})
	after := decoration.Decorator(func(r decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
		store := memstore.New(r.ResourcePrefix, r.NewFunc)
		c, err := moved.NewCacherFromConfig(moved.Config{
			Storage: store, Versioner: storage.APIObjectVersioner{}, GroupResource: r.Config.GroupResource,
			EventsHistoryWindow: r.Config.EventsHistoryWindow, ResourcePrefix: r.ResourcePrefix, KeyFunc: r.KeyFunc, GetAttrsFunc: r.GetAttrsFunc,
			IndexerFuncs: r.IndexerFuncs, Indexers: r.Indexers, NewFunc: r.NewFunc, NewListFunc: r.NewListFunc, Codec: r.Config.Codec,
		})
		if err != nil {
			return nil, nil, err
		}
		delegator := moved.NewCacheDelegator(c, store)
		return delegator, func() { delegator.Stop(); c.Stop() }, nil
	})
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

// memberStorage is the storage of one member cluster as a dynamic client gives it: it only
// reads, and knows nothing of progress, readiness and sizes.
type memberStorage struct{ storage.Interface }

var errMemberReadOnly = errors.New("a member cluster is only read")

func (memberStorage) Create(context.Context, string, runtime.Object, runtime.Object, uint64) error {
	return errMemberReadOnly
}

func (memberStorage) Delete(context.Context, string, runtime.Object, *storage.Preconditions, storage.ValidateObjectFunc, runtime.Object, storage.DeleteOptions) error {
	return errMemberReadOnly
}

func (memberStorage) GuaranteedUpdate(context.Context, string, runtime.Object, bool, *storage.Preconditions, storage.UpdateFunc, runtime.Object) error {
	return errMemberReadOnly
}

func (memberStorage) RequestWatchProgress(context.Context) error { return errors.ErrUnsupported }
func (memberStorage) ReadinessCheck() error                      { return errors.ErrUnsupported }
func (memberStorage) CompactRevision() int64                     { return 0 }
func (memberStorage) Stats(context.Context) (storage.Stats, error) {
	return storage.Stats{}, errors.ErrUnsupported
}
func (memberStorage) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

// memberDelegator embeds the delegator and sends all lists but those of any version to the
// member.
type memberDelegator struct {
	member storage.Interface
	*moved.CacheDelegator
	delegated *int
}

func (d *memberDelegator) GetList(ctx context.Context, key string, opts storage.ListOptions, into runtime.Object) error {
	if opts.ResourceVersion != "0" || opts.Predicate.Limit > 0 || opts.Predicate.Continue != "" {
		*d.delegated++
		return d.member.GetList(ctx, key, opts, into)
	}
	return d.CacheDelegator.GetList(ctx, key, opts, into)
}

// memberRegistry returns a registry of widgets of one member, which shares nothing with
// another member's.
func memberRegistry(t *testing.T, member storage.Interface, delegated *int) *genericregistry.Store {
	t.Helper()
	decorator := decoration.Decorator(func(r decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
		c, err := moved.NewCacherFromConfig(moved.Config{
			Storage: member, Versioner: storage.APIObjectVersioner{}, GroupResource: r.Config.GroupResource,
			EventsHistoryWindow: moved.DefaultEventFreshDuration, ResourcePrefix: r.ResourcePrefix, KeyFunc: r.KeyFunc, GetAttrsFunc: r.GetAttrsFunc,
			Indexers: r.Indexers, NewFunc: r.NewFunc, NewListFunc: r.NewListFunc, Codec: r.Config.Codec,
		})
		if err != nil {
			return nil, nil, err
		}
		delegator := &memberDelegator{member, moved.NewCacheDelegator(c, member), delegated}
		return delegator, sync.OnceFunc(func() { delegator.Stop(); c.Stop() }), nil
	})
	resource := poddata.Resource
	registry := &genericregistry.Store{
		NewFunc: newWidget, NewListFunc: newWidgets,
		DefaultQualifiedResource: resource, SingularQualifiedResource: resource,
		CreateStrategy: namespacedStrategy{}, DeleteStrategy: deleteStrategy{runtime.NewScheme()},
		TableConvertor: rest.NewDefaultTableConvertor(resource),
	}
	require.NoError(t, registry.CompleteWithOptions(&generic.StoreOptions{
		RESTOptions: generic.RESTOptions{
			StorageConfig:  (&storagebackend.Config{Codec: unstructured.UnstructuredJSONScheme}).ForResource(resource),
			ResourcePrefix: "pods", Decorator: decorator,
		},
		AttrFunc: storage.DefaultNamespaceScopedAttr,
	}))
	t.Cleanup(registry.DestroyFunc)
	return registry
}

// The strategies of a registry that is only read from.
type (
	namespacedStrategy struct{ rest.RESTCreateStrategy }
	deleteStrategy     struct{ rest.RESTDeleteStrategy }
)

func (namespacedStrategy) NamespaceScoped() bool { return true }

// A decorator in the shape of Karmada's search proxy: a type that embeds the delegator and
// overrides GetList, and one cache for each member cluster, over a storage that only reads.
func TestDecoratorOfMemberClusters(t *testing.T) {
	type member struct {
		data      *memstore.Store
		registry  *genericregistry.Store
		delegated int
	}
	members := map[string]*member{}
	for _, name := range []string{"one", "two"} {
		m := &member{data: newWidgetStore(widget("a/" + name))}
		m.registry = memberRegistry(t, memberStorage{m.data}, &m.delegated)
		members[name] = m
	}
	for name, m := range members {
		until(t, "the cache is ready", func() bool { return m.registry.ReadinessCheck() == nil })
		ctx := genericapirequest.WithNamespace(testContext(t), "a")
		for i, opts := range []metainternal.ListOptions{{ResourceVersion: "0"}, {}, {Limit: 1, ResourceVersion: "0"}} {
			list, err := m.registry.List(ctx, &opts)
			require.NoError(t, err)
			items := list.(*unstructured.UnstructuredList).Items
			require.Len(t, items, 1)
			require.Equal(t, name, items[0].GetName())
			require.Equal(t, i, m.delegated, "lists that the member has answered")
		}
		object, err := m.registry.Get(ctx, name, &metav1.GetOptions{ResourceVersion: "0"})
		require.NoError(t, err)
		w, err := m.registry.Watch(ctx, &metainternal.ListOptions{ResourceVersion: object.(*unstructured.Unstructured).GetResourceVersion()})
		require.NoError(t, err)
		defer w.Stop()
		m.data.Put(poddata.Prefix+"a/more", widget("a/more"))
		event := <-w.ResultChan()
		require.Equal(t, watch.Added, event.Type)
		_, _, err = m.registry.Delete(ctx, name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
		require.ErrorContains(t, err, errMemberReadOnly.Error())
	}
	// One member's end leaves the other one as it is.
	members["one"].registry.DestroyFunc()
	require.Error(t, members["one"].registry.ReadinessCheck())
	require.NoError(t, members["two"].registry.ReadinessCheck())
}

// A registry whose storage is set by hand, without Install and without a decorator. A
// change of the metadata of an event's object reaches clients in an object of its own only.
func TestStorageSetByHand(t *testing.T) {
	data := newWidgetStore(widget("a/one"))
	c, err := moved.New(moved.Config{
		Storage: data, Versioner: data.Versioner(), GroupResource: poddata.Resource, ResourcePrefix: "/pods/",
		KeyFunc:      func(object runtime.Object) (string, error) { return storage.NamespaceKeyFunc("/pods/", object) },
		GetAttrsFunc: storage.DefaultNamespaceScopedAttr, NewFunc: newWidget, NewListFunc: newWidgets,
	})
	require.NoError(t, err)
	registry := &genericregistry.Store{
		NewFunc: newWidget, NewListFunc: newWidgets,
		DefaultQualifiedResource: poddata.Resource, SingularQualifiedResource: poddata.Resource,
		CreateStrategy: namespacedStrategy{}, DeleteStrategy: deleteStrategy{runtime.NewScheme()},
		TableConvertor: rest.NewDefaultTableConvertor(poddata.Resource),
		Storage:        genericregistry.DryRunnableStorage{Storage: c, Codec: unstructured.UnstructuredJSONScheme},
		DestroyFunc:    c.Stop,
	}
	require.NoError(t, registry.CompleteWithOptions(&generic.StoreOptions{
		RESTOptions: generic.RESTOptions{
			StorageConfig: (&storagebackend.Config{}).ForResource(poddata.Resource), ResourcePrefix: "pods",
			Decorator: generic.UndecoratedStorage, // not called
		},
		AttrFunc: storage.DefaultNamespaceScopedAttr,
	}))
	until(t, "the cache is ready", func() bool { return registry.ReadinessCheck() == nil })
	ctx := genericapirequest.WithNamespace(testContext(t), "a")
	list, err := registry.List(ctx, &metainternal.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.(*unstructured.UnstructuredList).Items, 1)

	w, err := registry.Watch(ctx, &metainternal.ListOptions{ResourceVersion: list.(*unstructured.UnstructuredList).GetResourceVersion()})
	require.NoError(t, err)
	defer w.Stop()
	data.Put(poddata.Prefix+"a/two", widget("a/two"))
	event := <-w.ResultChan()
	shared, ok := event.Object.(runtime.CacheableObject)
	require.True(t, ok)
	annotate := func(object runtime.Object) {
		accessor, err := meta.Accessor(object)
		require.NoError(t, err)
		accessor.SetAnnotations(map[string]string{"cluster": "one"})
	}
	annotate(event.Object)
	require.Equal(t, "two", event.Object.(metav1.Object).GetName())
	require.Zero(t, testing.AllocsPerRun(10, func() { _ = event.Object.(metav1.ObjectMetaAccessor).GetObjectMeta() }))
	own := shared.GetObject().(*unstructured.Unstructured)
	require.Empty(t, own.GetAnnotations(), "what was set on the shared object")
	annotate(own)
	require.Equal(t, map[string]string{"cluster": "one"}, own.GetAnnotations())
	require.Empty(t, shared.GetObject().(*unstructured.Unstructured).GetAnnotations(), "what was set on a copy")

	registry.Destroy()
	<-c.Done()
}
