// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-watchcache/watchcache/integration/kubernetes/relayload"
	watchcache "github.com/kube-watchcache/watchcache/server"
)

func relayLoadCommand() *cobra.Command {
	config := relayload.Config{}
	implementation := watchcache.ImplementationShipped
	c := &cobra.Command{
		Use: "relay-load", Short: "Put informers on a relay and on its kube-apiserver by turns, and print what that took", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if config.Binary, err = os.Executable(); err != nil {
				return err
			}
			config.Implementation = implementation.String()
			report, err := relayload.Run(c.Context(), config, c.ErrOrStderr())
			if report == nil {
				return err
			}
			return errors.Join(err, report.Write(c.OutOrStdout()))
		},
	}
	flags := c.Flags()
	flags.StringVar(&config.Relay, "relay", "bin/relay", "the relay, as go build -o bin/relay ./cmd/relay makes it")
	flags.StringArrayVar(&config.RelayFlags, "relay-flag", nil, "one more flag of the relay; may be repeated")
	flags.Var(&implementation, "implementation", `the watch cache of the kube-apiserver: "watchcache" or "shipped"`)
	flags.StringSliceVar(&config.Turns, "turns", relayload.Turns, "what is measured, in this order, on one kube-apiserver")
	flags.StringVar(&config.Dir, "dir", filepath.Join(os.TempDir(), "watchcache-relay-load"), "where credentials, logs and data are; data of an earlier cluster there is removed")
	flags.IntVar(&config.Informers, "informers", 3000, "how many informers there are that decode no pods")
	flags.IntVar(&config.PerConnection, "per-connection", 50, "how many of them share a connection")
	flags.IntVar(&config.Controls, "controls", 20, "how many of client-go's informers there are beside them")
	flags.IntVar(&config.Pods, "pods", 5000, "how many pods there are")
	flags.IntVar(&config.Bytes, "bytes", 3000, "how large a pod is, in protobuf")
	flags.IntVar(&config.Changes, "changes", 20, "how many pods are changed in a second")
	flags.DurationVar(&config.Window, "window", 2*time.Minute, "how long the steady changes are measured")
	flags.DurationVar(&config.Patience, "patience", 15*time.Minute, "how long all informers may take to sync or to resume")
	flags.StringVar(&config.Profiles, "profiles", "", "an existing folder for CPU profiles of the windows")
	return c
}

func relayInformersCommand() *cobra.Command {
	return &cobra.Command{
		Use: relayload.FleetCommand, Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return relayload.ServeFleet(c.Context()) },
	}
}
