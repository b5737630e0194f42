// SPDX-License-Identifier: Apache-2.0

package main

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/compatibility"

	"github.com/kube-watchcache/watchcache/bench/boundary/form"
	"github.com/kube-watchcache/watchcache/devserver"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/install"
	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1beta1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/openapi"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/registry/device"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/server"
	watchcache "github.com/kube-watchcache/watchcache/server"
)

// newServer makes the server in a form. If newServer fails, nothing that it
// opened stays open.
func newServer(options *server.Options, env *devserver.Environment, which form.Form) (_ *genericapiserver.GenericAPIServer, err error) {
	scheme, codecs, err := newScheme()
	if err != nil {
		return nil, err
	}
	config := genericapiserver.NewRecommendedConfig(codecs)
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	namer := openapinamer.NewDefinitionNamer(scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	if err := env.Apply(options.Recommended, config); err != nil {
		return nil, err
	}
	if which != form.Shipped {
		if err := watchcache.Install(&config.Config, watchcache.WithOptions(options.WatchCache)); err != nil {
			return nil, err
		}
	}
	generic, err := config.Complete().New("bench", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			generic.Destroy()
		}
	}()
	devices, err := device.NewStorage(scheme, config.RESTOptionsGetter)
	if err != nil {
		return nil, err
	}
	generic.RegisterDestroyFunc(devices.Device.Destroy)
	group := genericapiserver.NewDefaultAPIGroupInfo(fleet.GroupName, scheme, metav1.ParameterCodec, codecs)
	resources := map[string]rest.Storage{"devices": devices.Device, "devices/status": devices.Status}
	for _, version := range []string{fleetv1.SchemeGroupVersion.Version, v1beta1.SchemeGroupVersion.Version} {
		group.VersionedResourcesStorageMap[version] = resources
	}
	installGroup := generic.InstallAPIGroup
	if which == form.Ours || which == form.Floor {
		installGroup = func(group *genericapiserver.APIGroupInfo) error { return watchcache.InstallAPIGroup(generic, group) }
	}
	if err := installGroup(&group); err != nil {
		return nil, err
	}
	if which != form.Shipped {
		err = watchcache.AddReadinessHook(generic)
	}
	if which == form.Floor {
		generic.Handler.FullHandlerChain = newFloor(generic.Handler.FullHandlerChain)
	}
	return generic, err
}

func newScheme() (*runtime.Scheme, serializer.CodecFactory, error) {
	scheme := runtime.NewScheme()
	err := install.AddToScheme(scheme)
	// The core group has the options of LIST and WATCH, and what servers answer
	// with beside objects.
	core := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, core)
	scheme.AddUnversionedTypes(core, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	return scheme, serializer.NewCodecFactory(scheme), err
}
