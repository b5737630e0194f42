// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"net"
	"strconv"
	"time"

	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/kube-watchcache/watchcache/devserver"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/openapi"
	"github.com/kube-watchcache/watchcache/server"
)

// Timeouts on shutdown.
const (
	// watchGracePeriod is for watches, which the server ends immediately.
	watchGracePeriod = 2 * time.Second
	// shutdownTimeout is for connections still busy afterwards.
	shutdownTimeout = 5 * time.Second
)

// config returns the server's configuration. env is nil unless the server is standalone.
func (o *Options) config(env *devserver.Environment) (*genericapiserver.RecommendedConfig, error) {
	config := genericapiserver.NewRecommendedConfig(o.codecs)
	config.EffectiveVersion = newEffectiveVersion()
	config.ShutdownWatchTerminationGracePeriod = watchGracePeriod
	namer := openapinamer.NewDefinitionNamer(o.scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIConfig.Info.Title = "Fleet"
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config.Info.Title = "Fleet"

	if err := o.apply(config, env); err != nil {
		return nil, err
	}

	// This line enables the watch cache.
	if err := server.Install(&config.Config, append(o.Cache, server.WithOptions(o.WatchCache))...); err != nil {
		return nil, err
	}
	return config, nil
}

func (o *Options) apply(config *genericapiserver.RecommendedConfig, env *devserver.Environment) error {
	if env != nil {
		return env.Apply(o.Recommended, config)
	}
	if err := o.listen(); err != nil {
		return err
	}
	return o.Recommended.ApplyTo(config)
}

// listen opens the port of an aggregated server, then creates a certificate if none is configured.
func (o *Options) listen() error {
	s := o.Recommended.SecureServing
	// Only ApplyTo can share a port.
	if !s.PermitPortSharing && !s.PermitAddressSharing {
		address := net.JoinHostPort(s.BindAddress.String(), strconv.Itoa(s.BindPort))
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return fmt.Errorf("--bind-address %s, --secure-port %d: %w", s.BindAddress, s.BindPort, err)
		}
		s.Listener = listener
	}
	if err := s.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{net.IPv4(127, 0, 0, 1)}); err != nil {
		return fmt.Errorf("--cert-dir %s: %w", s.ServerCert.CertDirectory, err)
	}
	return nil
}
