// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Command cluster runs a Kubernetes cluster without machines on this one: etcd, a
// kube-apiserver on a watch cache of choice, kube-controller-manager, kube-scheduler and
// fake nodes.
//
//	cluster up    runs it until Ctrl-C
//	cluster relay runs it, and a relay before it, until Ctrl-C
//	cluster load  puts clusters on either cache under a load, and prints what that took
//	cluster nodes runs fake nodes in a cluster that runs already
//
// The servers are the same program, by their names: cluster kube-apiserver, for example.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-watchcache/watchcache/integration/kubernetes/control"
	"github.com/kube-watchcache/watchcache/integration/kubernetes/local"
	"github.com/kube-watchcache/watchcache/integration/kubernetes/nodes"
	watchcache "github.com/kube-watchcache/watchcache/server"
)

const apiserverUsage = "one more flag of the kube-apiserver, as --apiserver=--watch-cache-shadow=0.01; may be repeated"

// startPatience bounds the start of a cluster.
const startPatience = 5 * time.Minute

func main() {
	control.Run(os.Args[1:])
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once, and its servers with it
	root := &cobra.Command{
		Use: "cluster", Short: "A Kubernetes cluster without machines, on a watch cache of choice",
		SilenceUsage: true, SilenceErrors: true, CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.AddCommand(upCommand(), relayCommand(), loadCommand(), nodesCommand(), relayLoadCommand(), relayInformersCommand())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

// up is what `cluster up` is told.
type up struct {
	local.Config
	implementation watchcache.Implementation
	apiserver      []string
	nodes          nodes.Config
	// greet starts what belongs to the cluster and says what to try.
	greet func(ctx context.Context, c *local.Cluster, out io.Writer) error
}

func upCommand() *cobra.Command {
	u := up{greet: func(_ context.Context, c *local.Cluster, out io.Writer) error {
		fmt.Fprintf(out, "\n  export KUBECONFIG=%s\n  kubectl get nodes\n  kubectl create deployment web --image=web --replicas=100\n\n", c.Kubeconfig())
		return nil
	}}
	return u.command("up", "Run a cluster until Ctrl-C", watchcache.ImplementationWatchCache, 1000)
}

func (u *up) command(use, short string, on watchcache.Implementation, count int) *cobra.Command {
	u.implementation, u.nodes.Watches = on, nodes.EachNode
	c := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return u.run(c.Context(), c.OutOrStdout()) },
	}
	c.Flags().Var(&u.implementation, "implementation", `the watch cache of the kube-apiserver: "watchcache" or "shipped"`)
	c.Flags().StringArrayVar(&u.apiserver, "apiserver", nil, apiserverUsage)
	c.Flags().StringVar(&u.Dir, "dir", filepath.Join(os.TempDir(), "watchcache-cluster"), "where credentials, logs and data are; data of an earlier cluster there is removed")
	nodeFlags(c, &u.nodes, count)
	return c
}

func nodeFlags(c *cobra.Command, config *nodes.Config, count int) {
	c.Flags().IntVar(&config.Count, "nodes", count, "how many fake nodes there are")
	c.Flags().Var(&config.Watches, "watches", "one watch of pods for each node, as kubelets have it, or a shared one")
}

func (u *up) run(ctx context.Context, out io.Writer) (err error) {
	if u.nodes.Count < 0 {
		return fmt.Errorf("--nodes=%d: must not be negative", u.nodes.Count)
	}
	u.Implementation = u.implementation.String()
	u.Servers = map[string][]string{"kube-apiserver": u.apiserver}
	if u.Binary, err = os.Executable(); err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	c, err := local.Start(starting, u.Config)
	if err != nil {
		if ctx.Err() != nil { // Ctrl-C
			return nil
		}
		return err
	}
	defer func() {
		fmt.Fprintln(out, "ending the cluster")
		err = errors.Join(err, c.Stop())
	}()
	fmt.Fprintf(out, "a cluster runs, on the watch cache %q, until Ctrl-C. Try:\n", u.Implementation)
	if err := u.greet(starting, c, out); err != nil {
		if ctx.Err() != nil { // Ctrl-C
			return nil
		}
		return err
	}
	return u.serve(ctx, c, out)
}

// serve is the nodes until ctx or a server ends.
func (u *up) serve(ctx context.Context, c *local.Cluster, out io.Writer) (err error) {
	if u.nodes.Client, err = c.Client("nodes"); err != nil {
		return err
	}
	if u.nodes.Count == 0 {
		return c.Await(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { // ends with ctx, and is awaited below
		defer cancel()
		ended <- nodes.Run(ctx, u.nodes, &nodes.Counts{}, func() { fmt.Fprintf(out, "%d nodes have registered\n", u.nodes.Count) })
	}()
	err = c.Await(ctx)
	cancel()
	return errors.Join(err, <-ended)
}

func nodesCommand() *cobra.Command {
	config := nodes.Config{Watches: nodes.EachNode}
	var kubeconfig string
	c := &cobra.Command{
		Use: "nodes", Short: "Run fake nodes in a cluster that runs already, until Ctrl-C", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if config.Client, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
				return err
			}
			config.Client.QPS = -1
			return nodes.Run(c.Context(), config, &nodes.Counts{}, func() { fmt.Fprintf(c.OutOrStdout(), "%d nodes have registered\n", config.Count) })
		},
	}
	c.Flags().StringVar(&kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "the kubeconfig of the cluster")
	nodeFlags(c, &config, 1000)
	return c
}
