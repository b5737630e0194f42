// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
	"github.com/kube-watchcache/watchcache/integration/internal/child"
)

// patience bounds every wait for what must come: a server, an election, a watch
// that catches up.
const patience = time.Minute

// testserver is the server under test. TestMain sets it.
var testserver apiserver.Program

func TestMain(m *testing.M) {
	os.Exit(child.Main(m, "chaos", func(dir string) { testserver = apiserver.NewProgram(dir) }))
}

// noLeaks fails the test for each goroutine that it starts from now on and that
// outlives everything that is cleaned up.
func noLeaks(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}
