// SPDX-License-Identifier: Apache-2.0

// Package install puts the three servers within a kube-apiserver on a watch cache. Both
// the kube-apiserver of this module and Kubernetes' own tests use it.
package install

import (
	"fmt"
	"os"
	"slices"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	genericapiserver "k8s.io/apiserver/pkg/server"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"

	watchcache "github.com/kube-watchcache/watchcache/server"
)

// Implementation is a watch cache.
type Implementation string

const (
	// Ours is the watch cache of this repository.
	Ours Implementation = "ours"
	// Shipped is the cacher within k8s.io/apiserver.
	Shipped Implementation = "shipped"
)

// Variable is the name of the environment variable that FromEnvironment reads.
const Variable = "WATCH_CACHE_IMPLEMENTATION"

var known = []Implementation{Ours, Shipped}

// String implements pflag.Value.
func (i *Implementation) String() string { return string(*i) }

// Type implements pflag.Value.
func (*Implementation) Type() string { return "ours|shipped" }

// Set implements pflag.Value.
func (i *Implementation) Set(name string) error {
	if !slices.Contains(known, Implementation(name)) {
		return fmt.Errorf("%q is not a watch cache: choose %q or %q", name, Ours, Shipped)
	}
	*i = Implementation(name)
	return nil
}

// FromEnvironment returns the implementation that WATCH_CACHE_IMPLEMENTATION names. A
// process without the variable is an error: a test that means to run on one cache must
// not run on the other.
func FromEnvironment() (Implementation, error) {
	var i Implementation
	if err := i.Set(strings.TrimSpace(os.Getenv(Variable))); err != nil {
		return "", fmt.Errorf("%s: %w", Variable, err)
	}
	return i, nil
}

// Chain puts the servers of a kube-apiserver on the cache: clients reach the aggregator,
// which passes requests on to the server of the built-in APIs, which passes them on to the
// one of custom resources. Call Chain before the Configs are completed.
func Chain(i Implementation, front *aggregator.Config, builtin *genericapiserver.Config, custom *apiextensions.Config) error {
	if i == Shipped {
		return nil
	}
	reached := &front.GenericConfig.Config
	if err := watchcache.Install(reached); err != nil {
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
func Builtin(i Implementation, config *genericapiserver.Config) error {
	if i == Shipped {
		return nil
	}
	return watchcache.Install(config)
}
