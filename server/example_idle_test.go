// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/kube-watchcache/watchcache/cacher"
	watchcache "github.com/kube-watchcache/watchcache/server"
)

// installForMany adopts the cache in a server with many resources: a cache starts
// with the first request for its resource, and sleeps after an hour without
// requests and watches.
func installForMany(config *genericapiserver.Config) error {
	return watchcache.Install(config, cacher.Configure(func(c *cacher.Config) { c.LazyStart, c.IdleTimeout = true, time.Hour }))
}

// In a server with hundreds of resources, most caches may sleep.
func ExampleInstall_idle() {
	config := &genericapiserver.Config{} // after EtcdOptions.ApplyTo, which sets its RESTOptionsGetter
	if err := installForMany(config); err != nil {
		return
	}
}
