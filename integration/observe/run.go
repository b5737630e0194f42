// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"time"

	"github.com/kube-watchcache/watchcache/dashboards"
)

// stopTimeout bounds the end of each child.
const stopTimeout = time.Minute

// Config says how the three are run together.
type Config struct {
	// Command is the example server, without its flags; Env is added to its
	// environment.
	Command, Env []string
	// Dir is an existing folder for the run directory of the server and the data of
	// Prometheus.
	Dir string
	// Interval is the time between two scrapes.
	Interval time.Duration
	// Scale is that of the alerts.
	Scale dashboards.Scale
	// Out is where the addresses are written.
	Out io.Writer
	// Soak, if set, ends the run after so long, with a report for Report of what the
	// server used of memory and goroutines in each minute.
	Soak   time.Duration
	Report io.Writer
}

// Run starts the server with an etcd inside it, Prometheus, and the clients, writes
// where they are, and ends all of them when ctx ends. The error says which of them
// could not be started, or ended by itself.
func Run(ctx context.Context, config Config) (err error) {
	server, err := StartServer(ctx, "example", config.Command, config.Env, filepath.Join(config.Dir, "server"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, within(server.Stop)) }()
	prometheus, err := StartPrometheus(ctx, PrometheusConfig{
		Dir: config.Dir, Interval: config.Interval, Scale: config.Scale, Targets: []Target{server.Target()},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, within(prometheus.Stop)) }()

	loading, end := context.WithCancel(ctx)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer end()
	clients.Go(func() {
		load := Load{Writers: 4, Readers: 3, Watchers: 10, Bytes: 20 << 10}
		if failed := load.Run(loading, server.Config); failed != nil {
			fmt.Fprintln(config.Out, "no load:", failed)
		}
	})
	clients.Go(func() { dawdle(loading, server) })
	announce(config.Out, server, prometheus)
	// A soak begins with the first scrape that has brought something: of a busy server,
	// one may take longer than it may.
	var from time.Time
	var look, soaked <-chan time.Time
	if config.Soak > 0 {
		tick := time.NewTicker(config.Interval)
		defer tick.Stop()
		look = tick.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look:
			values, err := prometheus.Query(ctx, soakedTables[0].query)
			if err != nil && ctx.Err() == nil {
				return err
			}
			if len(values) > 0 {
				look, from, soaked = nil, time.Now(), time.After(config.Soak)
			}
		case <-soaked:
			return writeSoak(ctx, prometheus, from, time.Now(), config.Report)
		case <-server.exited:
			return errors.New("the server ended by itself")
		case <-prometheus.exited:
			return errors.New("prometheus ended by itself")
		}
	}
}

// within calls stop with a deadline of its own.
func within(stop func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	return stop(ctx)
}

// dawdle is a client that reads nothing of its watch for a while, and then catches
// up, again and again until ctx ends.
func dawdle(ctx context.Context, server *Server) {
	const pause, awake = 20 * time.Second, 5 * time.Second
	for ctx.Err() == nil {
		w, err := OpenSlowWatch(ctx, server.Config, "observe-slow-client")
		if err == nil {
			stop := context.AfterFunc(ctx, func() { _ = w.Close() })
			for err == nil && sleep(ctx, pause) {
				err = w.ReadFor(awake)
			}
			stop()
			_ = w.Close()
		}
		sleep(ctx, time.Second)
	}
}

// sleep waits, and reports whether ctx goes on.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func announce(out io.Writer, server *Server, prometheus *Prometheus) {
	kubeconfig := filepath.Join(server.dir, "kubeconfig")
	pki := filepath.Join(server.dir, "pki")
	fmt.Fprintf(out, `The example server, with a load of reads, writes and watches, one of them slow:
  %[1]s
  kubectl --kubeconfig %[2]s get devices -A

Its page, and the same as JSON (docs/runbook.md has lines for jq: who is slow, and more):
  %[1]s/debug/watchcache
  kubectl --kubeconfig %[2]s get --raw '/debug/watchcache?format=json'
  curl --cacert %[3]s/ca.crt --cert %[3]s/client.crt --key %[3]s/client.key '%[1]s/debug/watchcache?format=json'
A browser needs the certificate of %[3]s, or this, which serves /debug/watchcache without one:
  kubectl --kubeconfig %[2]s proxy

Prometheus, with the rules of dashboards/prometheus:
  %[4]s/graph
  %[4]s/alerts

Grafana: import dashboards/grafana/*.json, with this Prometheus as the data source.

Ctrl-C ends all three.
`, server.URL, kubeconfig, pki, prometheus.URL)
}
