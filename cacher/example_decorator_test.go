// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/kube-watchcache/watchcache/cacher"
)

// Where RESTOptions are made by hand, a Decorator takes the place of
// genericregistry.StorageWithCacher. Make one Decorator for the whole server:
// stores of one resource then share a cache.
func ExampleDecorator() {
	decorator := cacher.Decorator(
		cacher.Configure(func(c *cacher.Config) { c.LabelIndexes = []string{"app.kubernetes.io/name"} }),
		cacher.Configure(func(c *cacher.Config) { c.WindowBytes = 64 << 20 }),
		cacher.Configure(func(c *cacher.Config) { c.LazyStart, c.IdleTimeout = true, time.Hour }),
	)
	restOptions := func(config *storagebackend.Config, resource schema.GroupResource) generic.RESTOptions {
		return generic.RESTOptions{
			StorageConfig:  config.ForResource(resource),
			Decorator:      decorator,
			ResourcePrefix: resource.Group + "/" + resource.Resource,
		}
	}
	options := restOptions(&storagebackend.Config{}, schema.GroupResource{Group: "fleet.example.com", Resource: "devices"})
	fmt.Println(options.ResourcePrefix, options.Decorator != nil)
	// Output: fleet.example.com/devices true
}
