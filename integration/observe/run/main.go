// SPDX-License-Identifier: Apache-2.0

// Command run is `make observe`: the example server, clients that load it, and
// Prometheus, until Ctrl-C.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kube-watchcache/watchcache/dashboards"
	"github.com/kube-watchcache/watchcache/integration/observe"
)

func main() {
	server := flag.String("server", "bin/apiserver", "the compiled example server")
	scale := flag.Float64("scale", 1, "how many seconds of the alerts pass in one second")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *server, dashboards.Scale(*scale)); err != nil {
		fmt.Fprintln(os.Stderr, "observe:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, server string, scale dashboards.Scale) error {
	if scale <= 0 {
		return fmt.Errorf("-scale %v: must be positive", float64(scale))
	}
	path, err := filepath.Abs(server)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "watchcache-observe-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	return observe.Run(ctx, observe.Config{
		Command: []string{path}, Dir: dir, Interval: time.Second, Scale: scale, Out: os.Stdout,
	})
}
