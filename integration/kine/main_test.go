// SPDX-License-Identifier: Apache-2.0

// Package kine holds the tests of the watch cache on a storage that is not
// etcd: kine on SQLite and on PostgreSQL, inside the process, behind the same
// client and the same storage/etcd3. docs/adopting.md says what came out.
//
// The replace lines in go.mod take kine's dependencies back to the versions of the
// main module, so that the libraries of Kubernetes are compiled once for both.
package kine

import (
	"flag"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/server"
	"github.com/kube-watchcache/watchcache/integration/internal/child"
)

// leftRunning are goroutines that libraries start and never end: klog's, those of the
// health checks of an API server, and kine's.
var leftRunning = []goleak.Option{
	goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
	goleak.IgnoreAnyFunction("k8s.io/apimachinery/pkg/util/wait.Forever"),
	goleak.IgnoreTopFunction("github.com/k3s-io/kine/pkg/logstructured.(*LogStructured).Watch.func1"), // if the database is closed while a watch begins
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
		klog.LogToStderr(false)
		klog.SetOutput(io.Discard)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var log child.Tail
	logrus.SetOutput(&log)
	logrus.SetLevel(logrus.WarnLevel)
	logrus.StandardLogger().ExitFunc = func(int) { panic("kine has given up:\n" + log.String()) }
	code := m.Run()
	postgres.stop()
	if code != 0 {
		fmt.Fprintf(os.Stderr, "kine said:\n%s", &log)
		return code
	}
	// At the end and not after each test, because they run side by side.
	if err := goleak.Find(leftRunning...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
