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

// newScheme returns a scheme with all that the server sends, receives and stores.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(v1.AddToScheme(scheme))
	// The options of requests, and the answers that every server gives, belong to
	// the core group for historical reasons.
	core := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, core)
	scheme.AddUnversionedTypes(core, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	return scheme
}

func newConfig() *genericapiserver.RecommendedConfig {
	config := genericapiserver.NewRecommendedConfig(codecs)
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	config.ShutdownWatchTerminationGracePeriod = 2 * time.Second // a server that stops ends its watches
	namer := openapinamer.NewDefinitionNamer(scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	return config
}

// newServer makes a server with widgets, on the watch cache.
func (o *options) newServer(config *genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer, error) {
	// The line that switches the watch cache on.
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
	// Lists come from kept bytes; generic.InstallAPIGroup(&group) encodes each of them, and
	// offers protobuf, which these types don't have, to the namespace controller.
	if err := watchcache.InstallAPIGroup(generic, &group); err != nil {
		return nil, err
	}
	return generic, watchcache.AddReadinessHook(generic)
}
