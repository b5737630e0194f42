// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-watchcache/watchcache/integration/kubernetes/load"
	"github.com/kube-watchcache/watchcache/integration/kubernetes/nodes"
)

func loadCommand() *cobra.Command {
	config := load.Config{Watches: nodes.EachNode}
	c := &cobra.Command{
		Use: "load", Short: "Put clusters on either cache under a load by turns, and print what that took", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if config.Binary, err = os.Executable(); err != nil {
				return err
			}
			report, err := load.Run(c.Context(), config, c.ErrOrStderr())
			if report == nil {
				return err
			}
			return errors.Join(err, report.Write(c.OutOrStdout()))
		},
	}
	flags := c.Flags()
	flags.StringSliceVar(&config.Implementations, "implementations", load.Implementations, "the watch caches, in the order of their turns: watchcache-lists is ours with lists of the built-in APIs from kept bytes")
	flags.StringArrayVar(&config.APIServer, "apiserver", nil, apiserverUsage)
	flags.StringVar(&config.Dir, "dir", filepath.Join(os.TempDir(), "watchcache-load"), "where credentials, logs and data are; data of an earlier cluster there is removed")
	flags.IntVar(&config.Rounds, "rounds", 2, "how often each cache has its turn")
	flags.IntVar(&config.Nodes, "nodes", 1000, "how many fake nodes there are")
	flags.Var(&config.Watches, "watches", "one watch of pods for each node, as kubelets have it, or a shared one")
	flags.IntVar(&config.Pods, "pods", 20000, "how many pods there are")
	flags.IntVar(&config.Deployments, "deployments", 100, "how many Deployments share the pods")
	flags.IntVar(&config.Rolled, "rolled", 10, "how many Deployments are rolled out again in each of the phases rolling and restart")
	flags.DurationVar(&config.Every, "every", 20*time.Second, "how often one of them is, whether the one before is through or not")
	flags.DurationVar(&config.Steady, "steady", time.Minute, "how long the phase takes in which nothing changes")
	flags.DurationVar(&config.Patience, "patience", time.Hour, "how long any other phase may take")
	flags.StringVar(&config.Profiles, "profiles", "", "where to write CPU profiles of the kube-apiserver in the phases steady and rolling")
	return c
}
