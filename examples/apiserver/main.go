// SPDX-License-Identifier: Apache-2.0

// Command apiserver is a complete aggregated API server on the watch cache, enabled by one line in
// pkg/server/config.go, and one in pkg/server/apis.go for lists from kept bytes.
//
//	go run ./examples/apiserver
//
// serves on 127.0.0.1 with etcd in its process. README.md explains what to try, and how to run it
// in a cluster.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/server"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the process immediately.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run serves until ctx ends and returns the exit status: 0, or 1 after one line on stderr with the
// error.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	command := server.NewCommand()
	command.SetArgs(args)
	command.SetOut(stdout)
	command.SetErr(stderr)
	if err := command.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(stderr, "apiserver: %s\n", strings.Join(strings.Fields(err.Error()), " "))
		return 1
	}
	return 0
}
