// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	watchcache "github.com/kube-watchcache/watchcache/server"
)

// newServer makes an aggregated API server on the cache. Its /readyz waits for
// the caches.
func newServer(codecs serializer.CodecFactory, stored schema.GroupVersion) (*genericapiserver.GenericAPIServer, error) {
	options := genericoptions.NewRecommendedOptions("/registry/"+stored.Group, codecs.LegacyCodec(stored))
	config := genericapiserver.NewRecommendedConfig(codecs)
	if err := options.ApplyTo(config); err != nil {
		return nil, err
	}
	if err := watchcache.Install(&config.Config); err != nil {
		return nil, err
	}
	server, err := config.Complete().New("example", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, err
	}
	// Here the server installs its API groups, whose stores are made with
	// config.RESTOptionsGetter.
	return server, watchcache.AddReadinessHook(server)
}

// An aggregated API server adopts the cache with Install after
// RecommendedOptions.ApplyTo.
func ExampleInstall() {
	var (
		codecs serializer.CodecFactory // of the scheme of your API
		stored = schema.GroupVersion{Group: "fleet.example.com", Version: "v1"}
	)
	server, err := newServer(codecs, stored)
	if err != nil {
		return
	}
	_ = server.PrepareRun()
}
