// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
	"github.com/kube-watchcache/watchcache/integration/internal/child"
	"github.com/kube-watchcache/watchcache/internal/race"
)

// The programs of the upstream's API server and of the relay.
var (
	server  apiserver.Program
	command *child.Program
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(child.Main(m, "relay", func(dir string) {
		server = apiserver.NewProgram(dir)
		command = &child.Program{Variable: "WATCHCACHE_RELAY_BINARY", Compile: func() (string, error) {
			path := filepath.Join(dir, "relay")
			args := []string{"-o", path, "github.com/kube-watchcache/watchcache/cmd/relay"}
			if race.Enabled {
				args = append([]string{"-race", "-tags=invariants"}, args...)
			}
			return path, child.GoBuild("", nil, args...)
		}}
	}))
}

// noLeaks fails the test for each goroutine that it starts from now on and that
// outlives everything that is cleaned up. The shipped cacher of an upstream in this
// process sleeps for 3 s for each read that has waited.
func noLeaks(t *testing.T) {
	before := goleak.IgnoreCurrent()
	timer := goleak.IgnoreTopFunction("k8s.io/apiserver/pkg/storage/cacher.(*watchCache).waitUntilFreshLocked.func2")
	t.Cleanup(func() { goleak.VerifyNone(t, before, timer) })
}
