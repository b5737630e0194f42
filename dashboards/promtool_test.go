// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/internal/needs"
)

// promtool, which comes with Prometheus, accepts the rules, and finds that each
// fires when it should.
func TestPromtool(t *testing.T) {
	path := needs.Program(t, "prometheus", "promtool")
	for _, args := range [][]string{{"check", "rules", RulesFile}, {"test", "rules", RuleTestsFile}} {
		out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
		require.NoError(t, err, "promtool %v\n%s", args, out)
	}
}
