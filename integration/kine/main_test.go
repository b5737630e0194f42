// SPDX-License-Identifier: Apache-2.0

// Package kine holds the tests of the watch cache on a storage that is not
// etcd: kine on SQLite, in a process of its own (package server), behind the
// same client and the same storage/etcd3. docs/backends.md says what came out.
package kine

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/server"
	"github.com/kube-watchcache/watchcache/integration/internal/child"
)

// leftRunning are goroutines that libraries start and never end: klog's, and the
// health checks' of an API server.
var leftRunning = []goleak.Option{
	goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
	goleak.IgnoreAnyFunction("k8s.io/apimachinery/pkg/util/wait.Forever"),
}

// The libraries' logs while kine is killed are shown only with -v.
func TestMain(m *testing.M) {
	// Most of the time the tests wait. The command line takes precedence.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	flag.Parse()
	// Before any goroutine logs: TestAPIServer's server does it, too.
	if err := server.ConfigureLogs(0); err != nil {
		panic(err)
	}
	if !testing.Verbose() {
		logs := flag.NewFlagSet("klog", flag.PanicOnError)
		klog.InitFlags(logs)
		if err := logs.Set("stderrthreshold", "FATAL"); err != nil {
			panic(err)
		}
	}
	os.Exit(child.InTempDir("kine", func(dir string) int {
		binaries = dir
		return run(m)
	}))
}

func run(m *testing.M) int {
	if _, err := program.Path(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if code := m.Run(); code != 0 {
		return code
	}
	// At the end and not after each test, because they run side by side.
	if err := goleak.Find(leftRunning...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
