// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"flag"
	"io"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
	"github.com/kube-watchcache/watchcache/integration/internal/child"
)

// patience bounds every wait for what must come: a server, an election, a watch
// that catches up.
const patience = time.Minute

// testserver is the server under test. TestMain sets it.
var testserver apiserver.Program

// TestMain silences client-go, whose log of servers that are away is noise unless
// somebody looks.
func TestMain(m *testing.M) {
	flag.Parse()
	klog.InitFlags(nil)
	if !testing.Verbose() {
		klog.LogToStderr(false)
		klog.SetOutput(io.Discard)
	}
	os.Exit(child.InTempDir("faults", func(dir string) int {
		testserver = apiserver.NewProgram(dir)
		return m.Run()
	}))
}

// noLeaks fails the test for each goroutine that it starts from now on and that
// outlives everything that is cleaned up.
func noLeaks(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}
