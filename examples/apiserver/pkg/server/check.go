// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-watchcache/watchcache/server"
)

// check detects configuration errors before the server writes or listens. Its errors begin with the
// responsible flag.
func (o *Options) check(ctx context.Context) error {
	if err := o.checkFiles(); err != nil {
		return err
	}
	if err := o.checkEtcd(ctx); err != nil {
		return err
	}
	if o.Standalone {
		return nil
	}
	return o.checkCluster()
}

func (o *Options) checkFiles() error {
	pair := o.Recommended.SecureServing.ServerCert.CertKey
	if pair.CertFile == "" && pair.KeyFile == "" {
		return nil
	}
	if _, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile); err != nil {
		return fmt.Errorf("--tls-cert-file %q, --tls-private-key-file %q: %w", pair.CertFile, pair.KeyFile, err)
	}
	return nil
}

func (o *Options) checkEtcd(ctx context.Context) error {
	if len(o.Recommended.Etcd.StorageConfig.Transport.ServerList) == 0 || o.Recommended.EgressSelector.ConfigFile != "" {
		return nil
	}
	if err := server.CheckEtcd(ctx, o.Recommended.Etcd.StorageConfig); err != nil {
		return fmt.Errorf("--etcd-servers %w", err)
	}
	return nil
}

// checkCluster checks for access to a kube-apiserver, by a kubeconfig or in a cluster.
func (o *Options) checkCluster() error {
	files := []struct{ flag, name string }{
		{"authentication-kubeconfig", o.Recommended.Authentication.RemoteKubeConfigFile},
		{"authorization-kubeconfig", o.Recommended.Authorization.RemoteKubeConfigFile},
		{"kubeconfig", o.Recommended.CoreAPI.CoreAPIKubeconfigPath},
	}
	_, inCluster := os.LookupEnv("KUBERNETES_SERVICE_HOST")
	for _, file := range files {
		if file.name == "" && inCluster {
			continue
		}
		if file.name == "" {
			return fmt.Errorf("--%s is missing, and there is no cluster around this process: "+
				"give a kubeconfig, or --standalone to serve this machine only", file.flag)
		}
		if _, err := clientcmd.LoadFromFile(file.name); err != nil {
			return fmt.Errorf("--%s %s: %w", file.flag, file.name, err)
		}
	}
	return nil
}
