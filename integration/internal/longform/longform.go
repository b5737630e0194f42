// SPDX-License-Identifier: Apache-2.0

// Package longform holds what tests need that go on for as long as the caller of
// make e2e wishes.
package longform

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Form is the suite of a long test: a folder of integration, as chaos.
type Form string

// The variables that make e2e sets.
const (
	durationVariable = "E2E_DURATION"
	seedVariable     = "E2E_SEED"
)

// Run is one run of a long form.
type Run struct {
	// Duration is how long the test goes on, Seed that of all its choices.
	Duration time.Duration
	Seed     uint64
	// Again is the command that repeats the run.
	Again string
}

// Asked returns the run that was asked for, false without any. A malformed
// variable fails the test. Without a seed the time is one.
func (f Form) Asked(t testing.TB) (Run, bool) {
	t.Helper()
	value := os.Getenv(durationVariable)
	if value == "" {
		return Run{}, false
	}
	r := Run{Seed: uint64(time.Now().UnixNano())}
	var err error
	r.Duration, err = time.ParseDuration(value)
	require.NoError(t, err, durationVariable)
	if value := os.Getenv(seedVariable); value != "" {
		r.Seed, err = strconv.ParseUint(value, 10, 64)
		require.NoError(t, err, seedVariable)
	}
	r.Again = fmt.Sprintf("make e2e SUITE=%s RUN=%s DURATION=%v SEED=%d", f, t.Name(), r.Duration, r.Seed)
	return r, true
}

// Only skips a test that no run was asked for of, and says how to ask for one.
func (f Form) Only(t testing.TB) Run {
	t.Helper()
	r, asked := f.Asked(t)
	if !asked {
		t.Skipf("a long test: make e2e SUITE=%s RUN=%s DURATION=30m", f, t.Name())
	}
	return r
}
