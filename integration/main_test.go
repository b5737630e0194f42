// SPDX-License-Identifier: Apache-2.0

// Package integration holds the tests that need the real thing: an etcd
// server in a container, as a process or embedded, and the binary of the
// example server. ETCD_MODE chooses, as package etcdserver says.
package integration

import (
	"flag"
	"fmt"
	"io"
	"os"
	"testing"

	"k8s.io/klog/v2"
)

// What the libraries log while objects are made unreadable and servers are
// stopped is noise, unless somebody looks.
func TestMain(m *testing.M) {
	flag.Parse()
	if !testing.Verbose() {
		klog.LogToStderr(false)
		klog.SetOutput(io.Discard)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "watchcache-integration-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binaries = dir
	return m.Run()
}
