// SPDX-License-Identifier: Apache-2.0

// Command server is the server that bench measures over HTTPS: the API of the
// example server, standalone, in one of four forms.
//
//	server --form=shipped ...  # server.Install is left out: the cacher of k8s.io/apiserver
//	server --form=plain ...    # server.Install, and the API group without a second line
//	server --form=ours ...     # server.Install and server.InstallAPIGroup
//	server --form=floor ...    # ours, whose bytes are written with nothing around them
//
// The other flags are those of the example server. The forms differ in nothing
// else.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/kube-watchcache/watchcache/bench/boundary/form"
	"github.com/kube-watchcache/watchcache/devserver"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/server"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends, and writes a line to out when the server is ready.
func run(ctx context.Context, args []string, out io.Writer) (err error) {
	options := server.NewOptions()
	flags := pflag.NewFlagSet("server", pflag.ContinueOnError)
	which := flags.String("form", "", "shipped, plain, ours or floor")
	sets := options.Flags()
	for _, topic := range sets.Order {
		flags.AddFlagSet(sets.FlagSets[topic])
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch form.Form(*which) {
	case form.Shipped, form.Plain, form.Ours, form.Floor:
	default:
		return fmt.Errorf("--form %q: want shipped, plain, ours or floor", *which)
	}
	options.Standalone = true
	options.Complete()
	if err := options.Validate(); err != nil {
		return err
	}
	if err := server.ConfigureLogs(options.Verbosity); err != nil {
		return err
	}
	serving := options.Recommended.SecureServing
	env, err := devserver.Open(ctx, devserver.Config{
		Dir: options.RunDir, BindAddress: serving.BindAddress, Port: serving.BindPort,
		Etcd: len(options.Recommended.Etcd.StorageConfig.Transport.ServerList) == 0,
	})
	if err != nil {
		return err
	}
	defer func() {
		if closed := env.Close(); err == nil {
			err = closed
		}
	}()
	// The etcd inside the process is filled from outside.
	if endpoints := env.Endpoints(); endpoints != nil {
		file := filepath.Join(options.RunDir, form.EndpointsFile)
		if err := os.WriteFile(file, []byte(strings.Join(endpoints, ",")), 0o600); err != nil {
			return err
		}
	}
	generic, err := newServer(options, env, form.Form(*which))
	if err != nil {
		return err
	}
	return env.Serve(ctx, generic, func(string) error {
		_, err := fmt.Fprintln(out, "Serving", *which, "on", env.URL())
		return err
	})
}
