// SPDX-License-Identifier: Apache-2.0

//go:build linux

package computed

import (
	"testing"

	"github.com/stretchr/testify/require"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	watchcache "github.com/kube-watchcache/watchcache/server"
	"github.com/kube-watchcache/watchcache/storage/memory"
)

// TestResources: a server with several stores, and no etcd, installs them at once; the
// caches of each have its state when its registry is made.
func TestResources(t *testing.T) {
	config, scheme := &genericapiserver.Config{}, poddata.Scheme()
	stores := map[string]*memory.Store{}
	var resources []generic.RESTOptions
	for _, name := range []string{"drafts", "finals"} {
		store, err := memory.New(memory.Config{
			GroupResource: schema.GroupResource{Resource: name}, ResourcePrefix: "/" + name, NewFunc: poddata.New, GetAttrsFunc: poddata.Attrs,
			KeyFunc: func(obj runtime.Object) (string, error) { return storage.NamespaceKeyFunc("/"+name+"/", obj) },
		})
		require.NoError(t, err)
		pod := poddata.Pod("a/of-" + name)
		require.NoError(t, store.Upsert(t.Context(), pod))
		stores[name] = store
		resources = append(resources, store.RESTOptions(poddata.Codec()))
	}
	require.NoError(t, watchcache.InstallResources(config, resources))
	require.ErrorIs(t, watchcache.Install(config), watchcache.ErrInstalled)
	_, err := config.RESTOptionsGetter.GetRESTOptions(schema.GroupResource{Resource: "others"}, nil)
	require.ErrorContains(t, err, "no storage of others")

	for name, store := range stores {
		resource := schema.GroupResource{Resource: name}
		strategy := poddata.NewStrategy(scheme)
		registry := &genericregistry.Store{
			NewFunc: poddata.New, NewListFunc: poddata.NewList, DefaultQualifiedResource: resource, SingularQualifiedResource: resource,
			UpdateStrategy: strategy, DeleteStrategy: strategy, TableConvertor: rest.NewDefaultTableConvertor(resource),
		}
		options, err := store.StoreOptions(config.RESTOptionsGetter, scheme, examplev1.SchemeGroupVersion.WithKind("Pod"))
		require.NoError(t, err)
		require.NoError(t, registry.CompleteWithOptions(options))
		require.NotNil(t, cacher.CacheOf(registry.Storage.Storage))
		list, err := registry.List(request.WithNamespace(t.Context(), "a"), &metainternalversion.ListOptions{ResourceVersion: "0"})
		require.NoError(t, err)
		require.Len(t, list.(*example.PodList).Items, 1)
		require.Equal(t, "of-"+name, list.(*example.PodList).Items[0].Name)
		registry.Destroy()
	}
}
