// SPDX-License-Identifier: Apache-2.0

// Package integration holds the tests that need the real thing: an etcd
// server in a container, as a process or embedded, and the binary of the
// example server. ETCD_MODE chooses, as package etcdserver says.
package integration

import (
	"flag"
	"io"
	"os"
	"testing"

	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/integration/internal/child"
)

// The libraries' logs while objects are made unreadable and servers are stopped
// are shown only with -v.
func TestMain(m *testing.M) {
	flag.Parse()
	if !testing.Verbose() {
		klog.LogToStderr(false)
		klog.SetOutput(io.Discard)
	}
	os.Exit(child.InTempDir("integration", func(dir string) int {
		binaries = dir
		return m.Run()
	}))
}
