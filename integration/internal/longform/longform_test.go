// SPDX-License-Identifier: Apache-2.0

package longform

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAsked(t *testing.T) {
	form := Form("waiting")
	t.Setenv("E2E_DURATION", "")
	_, asked := form.Asked(t)
	require.False(t, asked)
	t.Setenv("E2E_DURATION", "90s")
	t.Setenv("E2E_SEED", "7")
	run, asked := form.Asked(t)
	require.True(t, asked)
	require.Equal(t, Run{Duration: 90 * time.Second, Seed: 7, Again: "make e2e SUITE=waiting RUN=TestAsked DURATION=1m30s SEED=7"}, run)
	t.Setenv("E2E_SEED", "")
	run, _ = form.Asked(t)
	require.NotZero(t, run.Seed, "a run without a seed draws one")
}
