// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/kube-watchcache/watchcache/cacher"
)

// NewCommand returns the server's command line. Its errors are single lines without the usage. The
// options are for the watch cache.
func NewCommand(cache ...cacher.Option) *cobra.Command {
	options := NewOptions()
	options.Cache = cache
	command := &cobra.Command{
		Use:   "apiserver",
		Short: "An aggregated API server that runs on the watch cache",
		Long: `An aggregated API server for the devices of fleet.example.com, served from the watch cache.

Without flags it needs nothing else: it listens on 127.0.0.1, keeps its data in an etcd inside the process,
and writes a kubeconfig for its only client. With --etcd-servers it is a part of a cluster: it asks the
kube-apiserver of --authentication-kubeconfig and --authorization-kubeconfig, or the one of the cluster that
it runs in, who may do what.`,
		Args:          noArguments,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, _ []string) error {
			options.Complete()
			if err := options.Validate(); err != nil {
				return err
			}
			if err := ConfigureLogs(options.Verbosity); err != nil {
				return err
			}
			return options.Run(command.Context(), command.OutOrStdout())
		},
	}
	sets := options.Flags()
	for _, topic := range sets.Order {
		command.Flags().AddFlagSet(sets.FlagSets[topic])
	}
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return fmt.Errorf("%w; --help lists the flags", err)
	})
	cliflag.SetUsageAndHelpFunc(command, *sets, 100)
	return command
}

func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%q: the server takes flags only; --help lists them", args[0])
	}
	return nil
}
