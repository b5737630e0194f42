// SPDX-License-Identifier: Apache-2.0

// Command run is `make observe`: the example server, clients that load it, and
// Prometheus, until Ctrl-C. `make soak-server` runs them for a time, and writes what the
// server used of memory and goroutines.
package main

import (
	"bytes"
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
	soak := flag.Duration("soak", 0, "end after so long, and write what the server used in each minute to -report")
	report := flag.String("report", "bench/results/soak.md", "the file for the report of -soak")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *server, dashboards.Scale(*scale), *soak, *report); err != nil {
		fmt.Fprintln(os.Stderr, "observe:", err)
		os.Exit(1)
	}
}

const reportHead = `# A soak

` + "`make soak-server`" + ` for %s: the example server with an etcd in its process, 4 writers, 3 readers and 10 watchers that each ask five times a second, and a client that reads its watch for 5 of 25 seconds.

![Resident memory](../../docs/images/soak-memory.svg)

![Goroutines](../../docs/images/soak-goroutines.svg)
`

func run(ctx context.Context, server string, scale dashboards.Scale, soak time.Duration, report string) error {
	switch {
	case scale <= 0:
		return fmt.Errorf("-scale %v: must be positive", float64(scale))
	case soak < 0:
		return fmt.Errorf("-soak %s: must not be negative", soak)
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
	var written bytes.Buffer
	fmt.Fprintf(&written, reportHead, soak)
	err = observe.Run(ctx, observe.Config{
		Command: []string{path}, Dir: dir, Interval: time.Second, Scale: scale, Out: os.Stdout, Soak: soak, Report: &written,
	})
	if err != nil || soak == 0 || ctx.Err() != nil {
		return err
	}
	return os.WriteFile(report, written.Bytes(), 0o644)
}
