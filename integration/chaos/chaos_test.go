// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Environment variables of the long form, which make chaos sets.
const (
	durationVariable = "CHAOS_DURATION"
	seedVariable     = "CHAOS_SEED"
)

// calm is how long nothing goes wrong between two faults.
const calm = time.Second

// TestFixedFaults is the short form: some faults in a fixed order, from a fixed
// seed.
func TestFixedFaults(t *testing.T) {
	noLeaks(t)
	schedule, err := named(
		"the leader is killed",
		"clients are cut off in the middle of a message",
		"a follower is paused",
		"a server's connections to etcd are silent",
		"the history is compacted and all members are defragmented",
		"the leader is cut off from its peers",
		"a server is killed",
		"all members are killed",
		"clients' connections stall",
		"the history is compacted and all members are defragmented",
	)
	require.NoError(t, err)
	for i := range schedule {
		schedule[i].least, schedule[i].most = schedule[i].least*2, schedule[i].least*2
	}
	const seed = 14
	r := newRun(t, seed)
	r.execute(t.TempDir(), "go test ./integration/chaos -run TestFixedFaults", func(ctx context.Context) {
		for _, f := range schedule {
			r.next(ctx, f)
		}
	})
}

// TestRandomFaults is the long form.
func TestRandomFaults(t *testing.T) {
	duration, seed := longOnly(t)
	noLeaks(t)
	dir, err := os.MkdirTemp("", "watchcache-chaos-")
	require.NoError(t, err)
	again := fmt.Sprintf("make chaos DURATION=%v SEED=%d", duration, seed)
	fmt.Printf("again with: %s\nreport and timeline in %s\n", again, dir)
	r := newRun(t, seed)
	r.execute(dir, again, func(ctx context.Context) {
		for end := time.Now().Add(duration); time.Now().Before(end); {
			r.next(ctx, faults[r.random.IntN(len(faults))])
		}
	})
}

// longOnly skips a test of the long form, and says how to run it; otherwise it
// returns how long faults go on, and the seed of all choices.
func longOnly(t *testing.T) (time.Duration, uint64) {
	t.Helper()
	value := os.Getenv(durationVariable)
	if value == "" {
		fmt.Printf("%s: skipped, it is the long form: make chaos DURATION=30m\n", t.Name())
		t.Skipf("%s is not set", durationVariable)
	}
	duration, err := time.ParseDuration(value)
	require.NoError(t, err, durationVariable)
	seed := uint64(time.Now().UnixNano())
	if value := os.Getenv(seedVariable); value != "" {
		seed, err = strconv.ParseUint(value, 10, 64)
		require.NoError(t, err, seedVariable)
	}
	return duration, seed
}

// execute runs the load while chaos lasts, judges what came of it, writes the
// report to dir, and prints the end of it.
func (r *run) execute(dir, again string, chaos func(context.Context)) {
	r.t.Helper()
	ctx := r.t.Context()
	before := r.baseline(ctx)
	r.start()
	hold(ctx, 2*calm)
	chaos(ctx)
	hold(ctx, 2*calm)
	v := r.settle(ctx, dir)
	after, leaked := r.leaks(ctx, before)
	v.violations = append(v.violations, leaked...)
	v.figures = append(v.figures, "before: "+before.String(), "after: "+after.String())
	require.NoError(r.t, r.write(dir, v, again))
	fmt.Println(r.report(v, again))
	assert.Empty(r.t, v.violations)
	assert.Positive(r.t, v.ops, "operations judged")
	assert.Positive(r.t, v.events, "events judged")
}

// next lets a fault happen, and then nothing for a while.
func (r *run) next(ctx context.Context, f fault) {
	r.t.Helper()
	require.NoError(r.t, r.cause(ctx, f))
	r.quiet(ctx)
	hold(ctx, calm)
}
