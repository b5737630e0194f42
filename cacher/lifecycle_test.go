// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
)

// lockedGauges has the last values, and whether they were set under the lock.
type lockedGauges struct {
	t             *testing.T
	of            *readiness
	ready, paused bool
}

func (g *lockedGauges) Ready(ready bool)   { g.locked(); g.ready = ready }
func (g *lockedGauges) Paused(paused bool) { g.locked(); g.paused = paused }

func (g *lockedGauges) locked() {
	if g.of.mu.TryLock() {
		g.of.mu.Unlock()
		assert.Fail(g.t, "the lock is free while a gauge is set: another change may come between")
	}
}

// A list makes the cache ready while a read finds out that its storage has gone back:
// whichever comes last, the metric shows it.
func TestReadinessAndItsMetricAgree(t *testing.T) {
	g := &lockedGauges{t: t}
	g.of = newReadiness(clock.RealClock{}, g)
	for _, want := range []bool{true, true, false, true} {
		g.of.set(want)
		require.Equal(t, want, g.ready)
	}
	for _, why := range []error{errors.New("undeliverable"), nil} {
		g.of.pause(why)
		require.Equal(t, why != nil, g.paused)
	}
}
