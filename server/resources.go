// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/kube-watchcache/watchcache/cacher"
)

// InstallResources is [Install] for a server where the decorators of the given RESTOptions open the
// storage of some or all resources, e.g. storage/memory in place of etcd. config.RESTOptionsGetter
// serves all others and may be nil.
func InstallResources(config *genericapiserver.Config, resources []generic.RESTOptions, options ...cacher.Option) error {
	if config == nil {
		return Install(config)
	}
	own := ownResources{config.RESTOptionsGetter, map[schema.GroupResource]generic.RESTOptions{}}
	for _, r := range resources {
		own.resources[r.StorageConfig.GroupResource] = r
	}
	config.RESTOptionsGetter = own
	err := installWith(config, own.resources, options)
	if err != nil {
		config.RESTOptionsGetter = own.others
	}
	return err
}

type ownResources struct {
	others    generic.RESTOptionsGetter
	resources map[schema.GroupResource]generic.RESTOptions
}

func (o ownResources) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	if options, ok := o.resources[resource]; ok {
		return options, nil
	}
	if o.others == nil {
		return generic.RESTOptions{}, fmt.Errorf("server.InstallResources was given no storage of %s", resource)
	}
	return o.others.GetRESTOptions(resource, example)
}
