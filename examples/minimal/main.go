// SPDX-License-Identifier: Apache-2.0

// Command minimal is an aggregated API server with one type, on the watch cache. Without
// --etcd-servers it runs etcd in its process and serves only this machine; see README.md.
package main

import (
	"fmt"
	"net"
	"os"

	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/component-base/cli"

	"github.com/kube-watchcache/watchcache/devserver"
	watchcache "github.com/kube-watchcache/watchcache/server"

	v1 "github.com/kube-watchcache/watchcache/examples/minimal/api/v1"
)

func main() {
	watchcache.QuietGRPC()
	command := newCommand()
	command.SetContext(genericapiserver.SetupSignalContext())
	os.Exit(cli.Run(command))
}

type options struct {
	*genericoptions.RecommendedOptions
	cache  *watchcache.Options
	runDir string
}

func newCommand() *cobra.Command {
	o := options{genericoptions.NewRecommendedOptions("/registry", codecs.LegacyCodec(v1.GroupVersion)), watchcache.NewOptions(), ".run"}
	o.Etcd.StorageConfig.EncodeVersioner = v1.GroupVersion
	o.SecureServing.BindAddress, o.SecureServing.BindPort, o.SecureServing.Required = net.IPv4(127, 0, 0, 1), 8443, true
	command := &cobra.Command{
		Use:          "widgets",
		Short:        "Serves " + v1.GroupVersion.String() + " from the watch cache",
		Args:         cobra.NoArgs,
		SilenceUsage: true, // on errors; --help prints it
		RunE: func(command *cobra.Command, _ []string) error {
			if len(o.Etcd.StorageConfig.Transport.ServerList) == 0 {
				return o.develop(command)
			}
			return o.serve(command)
		},
	}
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w; --help lists the flags", err) })
	o.AddFlags(command.Flags())
	o.cache.AddFlags(command.Flags())
	command.Flags().StringVar(&o.runDir, "run-dir", o.runDir, "Without --etcd-servers: the directory for credentials, kubeconfig and etcd's data.")
	return command
}

// serve runs the server in a cluster.
func (o *options) serve(command *cobra.Command) error {
	if err := utilerrors.NewAggregate(append(o.Validate(), o.cache.Validate()...)); err != nil {
		return err
	}
	if command.Flags().Changed("run-dir") {
		return fmt.Errorf("--run-dir %s: a server with --etcd-servers has no run directory", o.runDir)
	}
	if err := watchcache.CheckEtcd(command.Context(), o.Etcd.StorageConfig); err != nil {
		return fmt.Errorf("--etcd-servers: %w", err)
	}
	if err := o.SecureServing.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{net.IPv4(127, 0, 0, 1)}); err != nil {
		return err
	}
	config := newConfig()
	if err := o.ApplyTo(config); err != nil {
		return err
	}
	generic, err := o.newServer(config)
	if err != nil {
		return err
	}
	return generic.PrepareRun().RunWithContext(command.Context())
}

// develop runs the server on this machine only.
func (o *options) develop(command *cobra.Command) error {
	if err := utilerrors.NewAggregate(append(devserver.Validate(o.RecommendedOptions, command.Flags()), o.cache.Validate()...)); err != nil {
		return err
	}
	return devserver.Run(command.Context(), o.runDir, o.RecommendedOptions, newConfig(), o.newServer, func(url, kubeconfig string) {
		fmt.Printf("Serving %s on %s, kubeconfig %s\n", v1.GroupVersion, url, kubeconfig)
	})
}
