// SPDX-License-Identifier: Apache-2.0

// Command minimal is an aggregated API server with one type, on the watch cache.
// Without --etcd-servers it serves this machine only, with an etcd inside the
// process; see README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/component-base/cli"

	"github.com/kube-watchcache/watchcache/cacher"
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

// options are the flags.
type options struct {
	*genericoptions.RecommendedOptions
	cache  *cacher.Options
	runDir string
}

func newCommand() *cobra.Command {
	o := options{genericoptions.NewRecommendedOptions("/registry", codecs.LegacyCodec(v1.GroupVersion)), cacher.NewOptions(), ".run"}
	o.Etcd.StorageConfig.EncodeVersioner = v1.GroupVersion
	o.SecureServing.BindAddress, o.SecureServing.BindPort = net.IPv4(127, 0, 0, 1), 8443
	command := &cobra.Command{
		Use:   "widgets",
		Short: "Serves " + v1.GroupVersion.String() + " from the watch cache",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := utilerrors.NewAggregate(o.cache.Validate()); err != nil {
				return err
			}
			if len(o.Etcd.StorageConfig.Transport.ServerList) == 0 {
				return o.develop(command.Context(), command.OutOrStdout())
			}
			return o.serve(command.Context())
		},
	}
	o.AddFlags(command.Flags())
	o.cache.AddFlags(command.Flags())
	command.Flags().StringVar(&o.runDir, "run-dir", o.runDir, "Without --etcd-servers: the directory for credentials, kubeconfig and etcd's data.")
	return command
}

// serve runs the server in a cluster until ctx ends.
func (o *options) serve(ctx context.Context) error {
	if err := utilerrors.NewAggregate(o.Validate()); err != nil {
		return err
	}
	if err := watchcache.CheckEtcd(ctx, o.Etcd.StorageConfig); err != nil {
		return fmt.Errorf("--etcd-servers: %w", err)
	}
	if err := o.SecureServing.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{net.IPv4(127, 0, 0, 1)}); err != nil {
		return err
	}
	config := newConfig()
	if err := o.ApplyTo(config); err != nil {
		return err
	}
	generic, err := newServer(config, cacher.WithOptions(o.cache))
	if err != nil {
		return err
	}
	return generic.PrepareRun().RunWithContext(ctx)
}

// develop runs the server on this machine, with nothing around it, until ctx ends.
func (o *options) develop(ctx context.Context, out io.Writer) (err error) {
	env, err := devserver.Open(ctx, devserver.Config{
		Dir: o.runDir, BindAddress: o.SecureServing.BindAddress, Port: o.SecureServing.BindPort, Etcd: true,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Close()) }()
	config := newConfig()
	if err := env.Apply(o.RecommendedOptions, config); err != nil {
		return err
	}
	generic, err := newServer(config, cacher.WithOptions(o.cache))
	if err != nil {
		return err
	}
	return env.Serve(ctx, generic, func(kubeconfig string) error {
		_, err := fmt.Fprintf(out, "Serving %s on %s, kubeconfig %s\n", v1.GroupVersion, env.URL(), kubeconfig)
		return err
	})
}
