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
)

// leftRunning are goroutines that libraries start and never end: klog's, and the
// health checks' of an API server.
var leftRunning = []goleak.Option{
	goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
	goleak.IgnoreAnyFunction("k8s.io/apimachinery/pkg/util/wait.Forever"),
}

// What the libraries log while kine is killed is noise, unless somebody looks.
func TestMain(m *testing.M) {
	// Most of the time the tests wait. What the command line says counts more.
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
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "watchcache-kine-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binaries = dir
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
