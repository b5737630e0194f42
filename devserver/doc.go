// SPDX-License-Identifier: Apache-2.0

// Package devserver runs an API server that is built on k8s.io/apiserver on a
// developer's machine, with nothing around it: no cluster, no etcd to install, no
// credentials to make.
//
//	errs := devserver.Validate(options, flags) // in place of options.Validate()
//	...
//	err := devserver.Run(ctx, ".run", options, config, // in place of options.ApplyTo(config)
//		func(config *genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer, error) {
//			... // server.Install, config.Complete().New, InstallAPIGroup
//		},
//		func(url, kubeconfig string) { fmt.Println("Serving on", url) })
//
// [Run] is all that most servers need; [Open], and the methods Apply and Serve, are
// its steps.
//
// An [Environment] is a run directory that one process owns, with an etcd inside
// the process, TLS credentials that the package makes, one client that the server
// trusts, and a kubeconfig for that client. The commands in examples/minimal and
// examples/apiserver use it if they are given no etcd, the one in examples/computed, which
// has none, always.
//
// # For development only
//
// Delegated authentication and authorization, the admission plugins, and priority
// and fairness are off: they need a kube-apiserver. To make up for it, the server
// listens on a loopback address only, and each request, for health checks and
// metrics too, must carry the client certificate of the kubeconfig. The key of the
// authority that signed the certificate is never written, so that nobody can make
// a second one.
//
// The package links etcd's server, about 10 MB, into a binary. Build what is
// deployed with the tag noembeddedetcd, which leaves etcd out: Config.Etcd is then
// an error, and a forgotten --etcd-servers cannot start a server on an empty etcd
// of its own. Code for production must not depend on an Environment: its API may
// change in any version, and its credentials last a year.
package devserver
