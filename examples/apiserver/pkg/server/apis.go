// SPDX-License-Identifier: Apache-2.0

package server

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	v1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1beta1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/registry/device"
	"github.com/kube-watchcache/watchcache/server"
)

// newServer returns a server with the fleet.example.com API. On failure, it closes everything it
// opened.
func (o *Options) newServer(config *genericapiserver.RecommendedConfig) (_ *genericapiserver.GenericAPIServer, err error) {
	completed := config.Complete()
	generic, err := completed.New("fleet-apiserver", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			generic.Destroy()
		}
	}()
	generic.ShutdownTimeout = shutdownTimeout

	devices, err := device.NewStorage(o.scheme, config.RESTOptionsGetter)
	if err != nil {
		return nil, err
	}
	generic.RegisterDestroyFunc(devices.Device.Destroy)

	group := genericapiserver.NewDefaultAPIGroupInfo(fleet.GroupName, o.scheme, metav1.ParameterCodec, o.codecs)
	// All versions share one storage, and thus one cache.
	resources := map[string]rest.Storage{"devices": devices.Device, "devices/status": devices.Status}
	group.VersionedResourcesStorageMap[v1.SchemeGroupVersion.Version] = resources
	group.VersionedResourcesStorageMap[v1beta1.SchemeGroupVersion.Version] = resources
	if err := server.InstallAPIGroup(generic, &group); err != nil {
		return nil, err
	}
	return generic, server.AddReadinessHook(generic)
}
