// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"os"
	"testing"
	"time"

	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
	"github.com/kube-watchcache/watchcache/integration/internal/child"
)

// patience bounds every wait for what must come.
const patience = 2 * time.Minute

// testserver is the server under test. TestMain sets it.
var testserver apiserver.Program

func TestMain(m *testing.M) {
	os.Exit(child.Main(m, "hostile", func(dir string) { testserver = apiserver.NewProgram(dir) }))
}
