// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	genericoptions "k8s.io/apiserver/pkg/server/options"
)

// watchGracePeriod is how long the server waits for its watches, which it tells to
// end, when it is stopped. Without a grace period it would wait for clients to close
// them, for up to a minute.
const watchGracePeriod = 2 * time.Second

// Apply takes the place of options.ApplyTo(config) for a server in this
// environment. Apply points options at the environment's listener, certificate
// and etcd, and sets those to nil that need a kube-apiserver: delegated
// authentication and authorization, the core API, and the admission plugins,
// the one for namespaces among them, so that namespaces are just names. API
// priority and fairness, which gets its rules from a kube-apiserver, is off.
// Then only the client of the kubeconfig has access. A server that is stopped
// ends its watches, unless config says for how long it waits for them.
//
// Without Config.Etcd, the options name the etcd. Call Apply once; options is
// changed, and the flags that belong to what is nil have no effect.
func (e *Environment) Apply(options *genericoptions.RecommendedOptions, config *genericapiserver.RecommendedConfig) error {
	cert, err := dynamiccertificates.NewStaticCertKeyContent("devserver serving certificate", e.credentials.servingCert, e.credentials.servingKey)
	if err != nil {
		return err
	}
	options.SecureServing.Listener = e.listener
	options.SecureServing.ServerCert.GeneratedCert = cert
	if e.etcd != nil {
		options.Etcd.StorageConfig.Transport.ServerList = e.etcd.Endpoints()
	}
	options.Authentication, options.Authorization, options.CoreAPI, options.Admission = nil, nil, nil, nil
	options.Features.EnablePriorityAndFairness = false
	if err := options.ApplyTo(config); err != nil {
		return err
	}
	if config.ShutdownWatchTerminationGracePeriod == 0 {
		config.ShutdownWatchTerminationGracePeriod = watchGracePeriod
	}
	return e.credentials.protect(&config.Config)
}
