// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"

	watchcache "github.com/kube-watchcache/watchcache/server"
	"github.com/kube-watchcache/watchcache/storage/memory"
)

var (
	version  = schema.GroupVersion{Group: "loads.example.com", Version: "v1"}
	resource = version.WithResource("loads").GroupResource()
	scheme   = newScheme()
	codecs   = serializer.NewCodecFactory(scheme)
)

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(version, &Load{}, &LoadList{})
	scheme.AddKnownTypes(resource.WithVersion(runtime.APIVersionInternal).GroupVersion(), &Load{}, &LoadList{})
	metav1.AddToGroupVersion(scheme, version)
	metav1.AddToGroupVersion(scheme, metav1.Unversioned)
	scheme.AddUnversionedTypes(metav1.Unversioned, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	return scheme
}

// newServer returns a server of loads on the watch cache.
func newServer(config *genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer, error) {
	store, err := memory.New(memory.Config{
		GroupResource:  resource,
		ResourcePrefix: "/loads",
		KeyFunc:        func(obj runtime.Object) (string, error) { return storage.NoNamespaceKeyFunc("/loads/", obj) },
		GetAttrsFunc:   attributes,
		NewFunc:        newLoad,
	})
	if err != nil {
		return nil, err
	}
	computed := &computer{Store: store}
	if err := computed.compute(context.Background()); err != nil { // fill the store before clients see it
		return nil, err
	}
	if err := watchcache.InstallResources(&config.Config, []generic.RESTOptions{store.RESTOptions(codecs.LegacyCodec(version))}); err != nil {
		return nil, err
	}
	loads := &genericregistry.Store{
		NewFunc: newLoad, NewListFunc: newList,
		DefaultQualifiedResource:  resource,
		SingularQualifiedResource: version.WithResource("load").GroupResource(),
		UpdateStrategy:            strategy{}, DeleteStrategy: strategy{},
		TableConvertor: table{rest.NewDefaultTableConvertor(resource)},
	}
	options, err := store.StoreOptions(config.RESTOptionsGetter, scheme, version.WithKind("Load"))
	if err != nil {
		return nil, err
	}
	if err := loads.CompleteWithOptions(options); err != nil {
		return nil, err
	}
	server, err := config.Complete().New("loads", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, err
	}
	group := genericapiserver.NewDefaultAPIGroupInfo(version.Group, scheme, metav1.ParameterCodec, codecs)
	group.VersionedResourcesStorageMap[version.Version] = map[string]rest.Storage{"loads": readOnly{loads, loads, loads, loads, loads, loads}}
	if err := watchcache.InstallAPIGroup(server, &group); err != nil {
		return nil, err
	}
	server.AddPostStartHookOrDie("loads", func(hook genericapiserver.PostStartHookContext) error {
		go wait.PollUntilContextCancel(hook, time.Second, false, func(ctx context.Context) (done bool, _ error) {
			if err := computed.compute(ctx); err != nil && ctx.Err() == nil {
				utilruntime.HandleErrorWithContext(ctx, err, "The loads could not be computed, and are tried again in a second")
			}
			return false, nil
		})
		return nil
	})
	return server, watchcache.AddReadinessHook(server)
}

// computer updates a store with the current loads.
type computer struct {
	*memory.Store
	before reading
}

func (c *computer) compute(ctx context.Context) error {
	now, err := read()
	if err == nil {
		err = c.Replace(ctx, loads(c.before, now))
		c.before = now
	}
	return err
}

func attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	load := obj.(*Load)
	return load.Labels, fields.Set{"metadata.name": load.Name, "percent": strconv.FormatInt(load.Percent, 10)}, nil
}

// readOnly is a registry without write methods: clients that write get a 405.
type readOnly struct {
	rest.Storage
	rest.Scoper
	rest.SingularNameProvider
	rest.Getter
	rest.Lister
	rest.Watcher
}

// strategy makes loads cluster-scoped. The registry is never written.
type strategy struct{ rest.RESTUpdateStrategy }

func (strategy) NamespaceScoped() bool { return false }

// table prints the columns of kubectl get.
type table struct{ rest.TableConvertor }

func (t table) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	out, err := t.TableConvertor.ConvertToTable(ctx, obj, options)
	if err != nil {
		return nil, err
	}
	if out.ColumnDefinitions != nil { // nil without headers
		out.ColumnDefinitions = []metav1.TableColumnDefinition{{Name: "Name", Type: "string", Format: "name"}, {Name: "Percent", Type: "integer"}, {Name: "Command", Type: "string"}}
	}
	for i := range out.Rows {
		load := out.Rows[i].Object.Object.(*Load)
		out.Rows[i].Cells = []any{load.Name, load.Percent, load.Command}
	}
	return out, nil
}
