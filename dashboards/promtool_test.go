// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// promtool, which comes with Prometheus, accepts the rules, and finds that each
// fires when it should.
func TestPromtool(t *testing.T) {
	path, err := exec.LookPath("promtool")
	if err != nil {
		require.NotEqual(t, "true", os.Getenv("CI"), "there is no promtool: run hack/packages.sh prometheus")
		t.Skip("there is no promtool: hack/packages.sh prometheus installs it")
	}
	for _, args := range [][]string{{"check", "rules", RulesFile}, {"test", "rules", RuleTestsFile}} {
		out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
		require.NoError(t, err, "promtool %v\n%s", args, out)
	}
}
