// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	shipped "k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/decoration"
)

// TestSwitch: the cache of a resource is the one that the flags name, in the Config of
// Install, in one that shares its caches, and for custom resources. A resource without a
// cache has none on either value.
func TestSwitch(t *testing.T) {
	ours, theirs := storage.Interface(&cacher.Cacher{}), storage.Interface(&shipped.CacheDelegator{})
	etcd := startEtcdFor(t) // the shipped cacher leaves goroutines behind for a while
	for name, test := range map[string]struct {
		options    Options
		pods, carp storage.Interface
	}{
		"default":  {Options{}, ours, ours},
		"ours":     {Options{Implementation: ImplementationWatchCache}, ours, ours},
		"one":      {Options{Shipped: []string{"carp.example.apiserver.k8s.io", "carp.example.apiserver.k8s.io"}}, ours, theirs},
		"shipped":  {Options{Implementation: ImplementationShipped}, theirs, theirs},
		"repeated": {Options{Implementation: ImplementationShipped, Shipped: []string{"pods.example.apiserver.k8s.io"}}, theirs, theirs},
	} {
		t.Run(name, func(t *testing.T) {
			fresh := func() generic.RESTOptionsGetter {
				o := genericoptions.NewEtcdOptions(etcd)
				o.WatchCacheSizes = []string{"plain." + example.GroupName + "#0"}
				return o.CreateRESTOptionsGetter(&genericoptions.SimpleStorageFactory{StorageConfig: o.StorageConfig}, nil)
			}
			front, behind := &genericapiserver.Config{RESTOptionsGetter: fresh()}, &genericapiserver.Config{RESTOptionsGetter: fresh()}
			options := test.options
			require.NoError(t, Install(front, WithOptions(&options)))
			options.Implementation, options.Shipped = "", nil // too late
			require.NoError(t, Share(front, behind))
			custom, err := CustomResources(behind, fresh())
			require.NoError(t, err)
			for _, getter := range []generic.RESTOptionsGetter{front.RESTOptionsGetter, behind.RESTOptionsGetter, custom} {
				for resource, want := range map[string]storage.Interface{"pods": test.pods, "carp": test.carp} {
					opened, destroy := open(t, getter, resource)
					require.IsType(t, want, opened, resource)
					for _, c := range front.HealthzChecks[0].(marker).all() {
						require.Same(t, opened, c, "the page has our caches only")
					}
					destroy()
				}
				plain, destroy := open(t, getter, "plain")
				require.NotContains(t, []string{fmt.Sprintf("%T", ours), fmt.Sprintf("%T", theirs)}, fmt.Sprintf("%T", plain))
				destroy()
			}
		})
	}
}

// An installation without a cache is ready, and reports misspelt names as one with caches
// does.
func TestSwitchReportsUnknown(t *testing.T) {
	config := &genericapiserver.Config{RESTOptionsGetter: &fakeGetter{}}
	require.NoError(t, Install(config, WithOptions(&Options{Shipped: []string{"gadgets.example.com", "pods", "gadget.example.com"}})))
	for _, resource := range []schema.GroupResource{gadgets, {Resource: "pods"}} {
		_, err := config.RESTOptionsGetter.GetRESTOptions(resource, nil)
		require.NoError(t, err)
	}
	i := config.HealthzChecks[0].(marker).installation
	require.Equal(t, []schema.GroupResource{{Group: "example.com", Resource: "gadget"}}, i.mu.unknown)
	log := logged(t)
	require.NoError(t, i.check(nil))
	require.NoError(t, i.check(nil))
	require.Len(t, log.lines("gadget.example.com"), 1)
}

// A storage of the server's own is nothing that the shipped cacher could read.
func TestSwitchRefusesRawStorage(t *testing.T) {
	raw := cacher.WithRawStorage(decoration.AsRaw(func(decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
		return nil, nil, errors.New("opened")
	}))
	for _, options := range []*Options{{Implementation: ImplementationShipped}, {Shipped: []string{"pods"}}} {
		inner := &fakeGetter{}
		config := &genericapiserver.Config{RESTOptionsGetter: inner}
		err := Install(config, raw, WithOptions(options))
		require.ErrorContains(t, err, "--watch-cache-implementation and --watch-cache-shipped can't be used")
		require.Same(t, inner, config.RESTOptionsGetter)
	}
	require.NoError(t, Install(&genericapiserver.Config{RESTOptionsGetter: &fakeGetter{}}, raw, WithOptions(NewOptions())))
}

// For resources on the shipped cacher nothing of ours is between the handlers and the client.
func TestSwitchOfAGroup(t *testing.T) {
	empty := func() runtime.Object { return &example.Pod{} }
	pod, carp := &genericregistry.Store{NewFunc: empty}, &genericregistry.Store{NewFunc: empty}
	for name, test := range map[string]struct {
		options Options
		served  map[string]rest.Storage
	}{
		"default": {Options{}, map[string]rest.Storage{"pods": pod, "pods/status": pod, "carp": carp}},
		"one":     {Options{Shipped: []string{"pods." + example.GroupName}}, map[string]rest.Storage{"carp": carp}},
		"all":     {Options{Implementation: ImplementationShipped}, nil},
		"shadow":  {Options{Shadow: 0.01}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			server := newServer(t, func(config *genericapiserver.Config) {
				config.RESTOptionsGetter = &fakeGetter{}
				require.NoError(t, Install(config, WithOptions(&test.options)))
			})
			group := genericapiserver.NewDefaultAPIGroupInfo(example.GroupName, pods(t).scheme, nil, pods(t).codecs)
			stock := group.NegotiatedSerializer
			group.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{"pods": pod, "pods/status": pod, "carp": carp}
			require.NoError(t, PrepareAPIGroup(server, &group))
			i := installationOf(server)
			version := schema.GroupVersion{Group: example.GroupName, Version: "v1"}
			served, ok := i.groups.Load(version)
			require.Equal(t, test.served != nil, ok)
			if !ok {
				require.Equal(t, stock, group.NegotiatedSerializer)
			} else {
				require.NotEqual(t, stock, group.NegotiatedSerializer)
				require.Equal(t, test.served, served.(*servedGroup).storages)
			}
			for _, verb := range []string{"list", "watch"} {
				for _, resource := range []string{"pods", "carp"} {
					info := &request.RequestInfo{IsResourceRequest: true, Verb: verb, APIGroup: version.Group, APIVersion: version.Version, Resource: resource}
					r := httptest.NewRequestWithContext(request.WithRequestInfo(t.Context(), info), http.MethodGet, "/", nil)
					asked, _ := i.classify(r)
					require.Equal(t, test.served[resource] != nil, asked == verb, "%s of %s", verb, resource)
				}
			}
		})
	}
}
