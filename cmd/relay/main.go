// SPDX-License-Identifier: Apache-2.0

// Command relay is a read replica for the API of any Kubernetes cluster. It holds one upstream
// watch per chosen resource, and serves GET, LIST and WATCH from a watch cache, with the upstream's
// resourceVersions and authorization. README.md lists its guarantees.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process immediately
	command := newCommand()
	command.SetContext(ctx)
	os.Exit(cli.Run(command))
}

// beginAgain restarts the program in this process.
func beginAgain() error {
	program, err := os.Executable()
	if err == nil {
		err = syscall.Exec(program, os.Args, os.Environ())
	}
	return fmt.Errorf("%w, which this process can't: %w", errChanged, err)
}

func newCommand() *cobra.Command {
	o := newOptions()
	command := &cobra.Command{
		Use:          "relay --resources=RESOURCE[.VERSION][.GROUP],...",
		Short:        "Serves chosen resources of another API server from a watch cache",
		Args:         cobra.NoArgs,
		SilenceUsage: true, // on errors; --help prints it
		RunE: func(command *cobra.Command, _ []string) error {
			if err := logsapi.ValidateAndApply(o.logs, nil); err != nil {
				return err
			}
			if err := utilerrors.NewAggregate(o.validate()); err != nil {
				return err
			}
			server, err := newServer(command.Context(), o)
			if err != nil {
				return err
			}
			err = server.run(func(address string) { fmt.Printf("Serving %s on %s\n", server.upstream.Host, address) })
			if server.changed.Load() && command.Context().Err() == nil {
				return beginAgain()
			}
			return err
		},
	}
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w; --help lists the flags", err) })
	sets := o.flags()
	for _, set := range sets.FlagSets {
		command.Flags().AddFlagSet(set)
	}
	cliflag.SetUsageAndHelpFunc(command, sets, 0)
	logs.InitLogs()
	return command
}
