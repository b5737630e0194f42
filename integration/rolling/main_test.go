// SPDX-License-Identifier: Apache-2.0

package rolling

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
	"github.com/kube-watchcache/watchcache/integration/internal/child"
)

var (
	informers = flag.Int("informers", 100, "how many informers follow")
	earlier   = flag.String("earlier", "", "the commit of an earlier version, for TestBetweenVersions")
)

// The servers' programs, of this version and of the earlier one.
var current, former apiserver.Program

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(child.Main(m, "rolling", func(dir string) {
		current, former = apiserver.NewProgram(dir), apiserver.NewEarlierProgram(dir, *earlier)
	}))
}

// noLeaks fails the test for each goroutine that it starts from now on and that
// outlives everything that is cleaned up.
func noLeaks(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}
