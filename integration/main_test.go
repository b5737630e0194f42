// SPDX-License-Identifier: Apache-2.0

// Package integration holds the tests that need the real thing: an etcd
// server in a container, as a process or embedded, and the binary of the
// example server. ETCD_MODE chooses, as package etcdserver says.
package integration

import (
	"os"
	"testing"

	"github.com/kube-watchcache/watchcache/integration/internal/child"
)

func TestMain(m *testing.M) {
	os.Exit(child.Main(m, "integration", func(dir string) { binaries = dir }))
}
