// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/dashboards"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/server"
	"github.com/kube-watchcache/watchcache/internal/decoration"
)

// patience bounds every wait for what must come.
const patience = 5 * time.Minute

// The environment variables that make the test binary one of the programs that the
// tests start, so that nothing else is linked.
const (
	serverVariable  = "WATCHCACHE_OBSERVE_SERVER"  // faultyServer, or anything else that is not empty
	metricsVariable = "WATCHCACHE_OBSERVE_METRICS" // the file of exportMetrics, or empty
	runVariable     = "WATCHCACHE_OBSERVE_RUN"     // the folder of Run
)

// faultyServer asks for a server on a faultyStorage.
const faultyServer = "faulty"

func TestMain(m *testing.M) {
	switch os.Getenv(serverVariable) {
	case "":
	case faultyServer:
		os.Exit(end(serve(cacher.WithRawStorage(decoration.AsRaw(openFaulty)))))
	default:
		os.Exit(end(serve()))
	}
	if dir := os.Getenv(runVariable); dir != "" {
		os.Exit(end(run(dir)))
	}
	flag.Parse()
	if !testing.Verbose() {
		klog.LogToStderr(false)
		klog.SetOutput(io.Discard)
	}
	os.Exit(m.Run())
}

// end returns the exit status of a program.
func end(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// serve is the example server.
func serve(options ...cacher.Option) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if file := os.Getenv(metricsVariable); file != "" {
		exported, err := exportMetrics(file)
		if err != nil {
			return err
		}
		options = append(options, exported)
	}
	command := server.NewCommand(options...)
	command.SetArgs(os.Args[1:])
	return command.ExecuteContext(ctx)
}

// run is what the command of `make observe` does.
func run(dir string) error {
	if err := os.Unsetenv(runVariable); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return Run(ctx, Config{
		Command: []string{os.Args[0]}, Env: []string{serverVariable + "=true"}, Dir: dir,
		Interval: 5 * time.Second, Scale: dashboards.RealTime, Out: os.Stdout,
	})
}
