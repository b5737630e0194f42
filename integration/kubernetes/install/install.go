// SPDX-License-Identifier: Apache-2.0

// Package install puts the three servers within a kube-apiserver on the watch cache that
// its options choose. Both the kube-apiserver of this module and Kubernetes' own tests
// use it.
package install

import (
	"errors"
	"fmt"
	"os"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	genericapiserver "k8s.io/apiserver/pkg/server"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"

	watchcache "github.com/kube-watchcache/watchcache/server"
)

// Variable is the name of the environment variable that FromEnvironment reads.
const Variable = "WATCH_CACHE_IMPLEMENTATION"

// FromEnvironment returns options with the implementation that WATCH_CACHE_IMPLEMENTATION
// names. A process without the variable is an error: a test that means to run on one
// cache must not run on the other.
func FromEnvironment() (*watchcache.Options, error) {
	o := watchcache.NewOptions()
	if err := o.Implementation.Set(strings.TrimSpace(os.Getenv(Variable))); err != nil {
		return nil, fmt.Errorf("%s: %w", Variable, err)
	}
	return o, nil
}

// Chain puts the servers of a kube-apiserver on the cache: clients reach the aggregator,
// which passes requests on to the server of the built-in APIs, which passes them on to the
// one of custom resources. Call Chain before the Configs are completed.
func Chain(o *watchcache.Options, front *aggregator.Config, builtin *genericapiserver.Config, custom *apiextensions.Config) error {
	reached := &front.GenericConfig.Config
	if err := watchcache.Install(reached, watchcache.WithOptions(o)); err != nil {
		return fmt.Errorf("the aggregator: %w", err)
	}
	if err := watchcache.Share(reached, builtin); err != nil {
		return fmt.Errorf("the built-in APIs: %w", err)
	}
	definitions := &custom.GenericConfig.Config
	if err := watchcache.Share(reached, definitions); err != nil {
		return fmt.Errorf("the definitions of custom resources: %w", err)
	}
	getter, err := watchcache.CustomResources(definitions, custom.ExtraConfig.CRDRESTOptionsGetter)
	if err != nil {
		return fmt.Errorf("custom resources: %w", err)
	}
	custom.ExtraConfig.CRDRESTOptionsGetter = getter
	return nil
}

// Builtin puts a server of the built-in APIs alone on the cache, as some tests run it.
func Builtin(o *watchcache.Options, config *genericapiserver.Config) error {
	return watchcache.Install(config, watchcache.WithOptions(o))
}

// keptLists: lists of the built-in APIs are answered from kept bytes, if the kube-apiserver
// was compiled for it.
var keptLists, compiledFor bool

// BuiltinGroup is for the copy of package builtin, in the loop of a kube-apiserver that
// installs its groups. It returns what is called with each of them.
func BuiltinGroup() func(*genericapiserver.GenericAPIServer, *genericapiserver.APIGroupInfo) error {
	compiledFor = true
	return func(server *genericapiserver.GenericAPIServer, group *genericapiserver.APIGroupInfo) error {
		if !keptLists {
			return nil
		}
		return watchcache.PrepareAPIGroup(server, group)
	}
}

// KeepLists has lists of the built-in APIs answered from kept bytes in this process, whose
// servers are made afterwards.
func KeepLists() error {
	if !compiledFor {
		return errors.New("lists of the built-in APIs from kept bytes: this kube-apiserver was not compiled with the copy of integration/kubernetes/builtin, as make kubernetes does")
	}
	keptLists = true
	return nil
}
