// SPDX-License-Identifier: Apache-2.0

package longform

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAsked(t *testing.T) {
	form := Form{Target: "waiting", Name: "WAITING"}
	t.Setenv("WAITING_DURATION", "")
	_, asked := form.Asked(t)
	require.False(t, asked)
	t.Setenv("WAITING_DURATION", "90s")
	t.Setenv("WAITING_SEED", "7")
	run, asked := form.Asked(t)
	require.True(t, asked)
	require.Equal(t, Run{Duration: 90 * time.Second, Seed: 7, Again: "make waiting DURATION=1m30s SEED=7"}, run)
	t.Setenv("WAITING_SEED", "")
	run, _ = form.Asked(t)
	require.NotZero(t, run.Seed, "a run without a seed draws one")
}
