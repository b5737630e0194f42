// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/kube-watchcache/watchcache/cacher"
	watchcache "github.com/kube-watchcache/watchcache/server"
)

// installForDevices adopts the cache for one resource. The others keep the cache
// that k8s.io/apiserver ships.
func installForDevices(config *genericapiserver.Config) error {
	return watchcache.Install(config, cacher.Only(schema.GroupResource{Group: "fleet.example.com", Resource: "devices"}))
}

// A server may adopt the cache resource by resource.
func ExampleInstall_only() {
	config := &genericapiserver.Config{} // after EtcdOptions.ApplyTo, which sets its RESTOptionsGetter
	if err := installForDevices(config); err != nil {
		return
	}
}
