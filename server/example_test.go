// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/server"
)

// An aggregated API server moves over with Install after RecommendedOptions.ApplyTo;
// with WithMetrics its /metrics shows the caches, and with AddReadinessHook its
// /readyz waits for them.
func ExampleInstall() {
	newServer := func(codecs serializer.CodecFactory, stored schema.GroupVersion) (*genericapiserver.GenericAPIServer, error) {
		config := genericapiserver.NewRecommendedConfig(codecs)
		options := genericoptions.NewRecommendedOptions("/registry/example.com", codecs.LegacyCodec(stored))
		if err := options.ApplyTo(config); err != nil {
			return nil, err
		}
		collectors, err := metrics.New(legacyregistry.Registerer())
		if err != nil {
			return nil, err
		}
		if err := server.Install(&config.Config, cacher.WithMetrics(collectors)); err != nil {
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
