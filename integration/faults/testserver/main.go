// SPDX-License-Identifier: Apache-2.0

// Command testserver is the example API server, with the cache that its first
// argument names: "ours", or "shipped" for the one of k8s.io/apiserver. The
// others are the example's flags.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/server"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "testserver:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("the first argument must be ours or shipped")
	}
	var options []cacher.Option
	switch args[0] {
	case "ours":
	case "shipped":
		options = append(options, cacher.Except(schema.GroupResource{Group: fleet.GroupName, Resource: "devices"}))
	default:
		return fmt.Errorf("%q: the first argument must be ours or shipped", args[0])
	}
	command := server.NewCommand(options...)
	command.SetArgs(args[1:])
	return command.ExecuteContext(ctx)
}
