// SPDX-License-Identifier: Apache-2.0

// Package longform is about tests that go on for as long as somebody wants them
// to: a make target says for how long, and with which seed.
package longform

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Form names a target of the Makefile, which sets NAME_DURATION and NAME_SEED.
type Form struct {
	// Target is the make target, for example chaos; the variables have it in upper
	// case, as Name.
	Target, Name string
}

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
	value := os.Getenv(f.Name + "_DURATION")
	if value == "" {
		return Run{}, false
	}
	r := Run{Seed: uint64(time.Now().UnixNano())}
	var err error
	r.Duration, err = time.ParseDuration(value)
	require.NoError(t, err, "%s_DURATION", f.Name)
	if value := os.Getenv(f.Name + "_SEED"); value != "" {
		r.Seed, err = strconv.ParseUint(value, 10, 64)
		require.NoError(t, err, "%s_SEED", f.Name)
	}
	r.Again = fmt.Sprintf("make %s DURATION=%v SEED=%d", f.Target, r.Duration, r.Seed)
	return r, true
}

// Only skips a test that no run was asked for of, and says how to ask for one.
func (f Form) Only(t testing.TB) Run {
	t.Helper()
	r, asked := f.Asked(t)
	if !asked {
		fmt.Printf("%s: skipped, it is a part of the long form: make %s DURATION=30m\n", t.Name(), f.Target)
		t.Skipf("%s_DURATION is not set", f.Name)
	}
	return r
}
