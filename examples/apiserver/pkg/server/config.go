// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"net"
	"strconv"
	"time"

	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/openapi"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/standalone"
	"github.com/kube-watchcache/watchcache/server"
)

// How long a server that was asked to stop waits for others.
const (
	// watchGracePeriod is for watches, which are told to end at once.
	watchGracePeriod = 2 * time.Second
	// shutdownTimeout is for connections that are still busy after that.
	shutdownTimeout = 5 * time.Second
)

// config turns the options into the configuration of a server. env is nil unless
// the server is a standalone one.
func (o *Options) config(env *standalone.Environment) (*genericapiserver.RecommendedConfig, error) {
	config := genericapiserver.NewRecommendedConfig(o.codecs)
	config.EffectiveVersion = newEffectiveVersion()
	config.ShutdownWatchTerminationGracePeriod = watchGracePeriod
	namer := openapinamer.NewDefinitionNamer(o.scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIConfig.Info.Title = "Fleet"
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config.Info.Title = "Fleet"

	prepare := o.listen
	if env != nil {
		prepare = func() error { return o.standAlone(env) }
	}
	if err := prepare(); err != nil {
		return nil, err
	}
	if err := o.Recommended.ApplyTo(config); err != nil {
		return nil, err
	}
	if env != nil {
		if err := env.Protect(&config.Config); err != nil {
			return nil, err
		}
	}

	// The line that switches the watch cache on.
	if err := server.Install(&config.Config); err != nil {
		return nil, err
	}
	return config, nil
}

// standAlone points the options at the environment, and takes out what needs a
// kube-apiserver: delegated authentication and authorization, the core API, the
// admission plugins (namespaces among them: they are just names here), and API
// priority and fairness, which gets its rules from there.
func (o *Options) standAlone(env *standalone.Environment) error {
	cert, err := env.ServingCert()
	if err != nil {
		return err
	}
	r := o.Recommended
	r.SecureServing.Listener = env.Listener()
	r.SecureServing.ServerCert.GeneratedCert = cert
	if endpoints := env.Endpoints(); endpoints != nil {
		r.Etcd.StorageConfig.Transport.ServerList = endpoints
	}
	r.Authentication, r.Authorization, r.CoreAPI, r.Admission = nil, nil, nil, nil
	r.Features.EnablePriorityAndFairness = false
	return nil
}

// listen takes the port of an aggregated server, then makes a certificate if none
// was given.
func (o *Options) listen() error {
	s := o.Recommended.SecureServing
	// Only the options themselves know how to share a port.
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
