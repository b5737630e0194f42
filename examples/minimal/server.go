// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/compatibility"

	watchcache "github.com/kube-watchcache/watchcache/server"

	"github.com/kube-watchcache/watchcache/examples/minimal/api/openapi"
	v1 "github.com/kube-watchcache/watchcache/examples/minimal/api/v1"
)

var (
	scheme = newScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(v1.AddToScheme(scheme))
	// Request options and the common responses are in the core group for historical reasons.
	core := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, core)
	scheme.AddUnversionedTypes(core, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	return scheme
}

func newConfig() *genericapiserver.RecommendedConfig {
	config := genericapiserver.NewRecommendedConfig(codecs)
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	config.ShutdownWatchTerminationGracePeriod = 2 * time.Second // on shutdown, the server ends its watches
	namer := openapinamer.NewDefinitionNamer(scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	return config
}

// newServer returns a server of widgets on the watch cache.
func (o *options) newServer(config *genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer, error) {
	// This line enables the watch cache.
	if err := watchcache.Install(&config.Config, watchcache.WithOptions(o.cache)); err != nil {
		return nil, err
	}
	generic, err := config.Complete().New("widgets", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, err
	}
	widgets, err := newStorage(scheme, config.RESTOptionsGetter)
	if err != nil {
		return nil, err
	}
	group := genericapiserver.NewDefaultAPIGroupInfo(v1.GroupVersion.Group, scheme, metav1.ParameterCodec, codecs)
	group.VersionedResourcesStorageMap[v1.GroupVersion.Version] = map[string]rest.Storage{"widgets": widgets}
	// This serves lists from kept bytes. generic.InstallAPIGroup(&group) would encode each list,
	// and offer protobuf, which these types don't support, to the namespace controller.
	if err := watchcache.InstallAPIGroup(generic, &group); err != nil {
		return nil, err
	}
	return generic, watchcache.AddReadinessHook(generic)
}
