// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/server"
)

// An aggregated API server moves over with Install after RecommendedOptions.ApplyTo.
// With AddReadinessHook its /readyz waits for the caches. What is rarely used may
// start on first use and sleep when nobody uses it.
func ExampleInstall() {
	newServer := func(codecs serializer.CodecFactory, stored schema.GroupVersion) (*genericapiserver.GenericAPIServer, error) {
		config := genericapiserver.NewRecommendedConfig(codecs)
		options := genericoptions.NewRecommendedOptions("/registry/example.com", codecs.LegacyCodec(stored))
		if err := options.ApplyTo(config); err != nil {
			return nil, err
		}
		if err := server.Install(&config.Config, cacher.WithLazyStart(), cacher.WithIdleTimeout(time.Hour)); err != nil {
			return nil, err
		}
		generic, err := config.Complete().New("example", genericapiserver.NewEmptyDelegate())
		if err != nil {
			return nil, err
		}
		// Here the server installs its API groups, with storages from config.RESTOptionsGetter.
		return generic, server.AddReadinessHook(generic)
	}
	_ = newServer
}

// Resource by resource: those that are left out keep the cache that
// k8s.io/apiserver ships.
func ExampleInstall_only() {
	adopt := func(config *genericapiserver.RecommendedConfig) error {
		return server.Install(&config.Config, cacher.Only(schema.GroupResource{Group: "example.com", Resource: "devices"}))
	}
	_ = adopt
}
