// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/integration/internal/longform"
)

// long is the long form.
var long = longform.Form{Target: "chaos", Name: "CHAOS"}

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
		"etcd has no space left",
		"clients' connections overtake each other",
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
	asked := long.Only(t)
	noLeaks(t)
	dir, err := os.MkdirTemp("", "watchcache-chaos-")
	require.NoError(t, err)
	fmt.Printf("again with: %s\nreport and timeline in %s\n", asked.Again, dir)
	r := newRun(t, asked.Seed)
	r.execute(dir, asked.Again, func(ctx context.Context) {
		for end := time.Now().Add(asked.Duration); time.Now().Before(end); {
			r.next(ctx, r.draw()...)
		}
	})
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

// draw draws a fault, or two that happen at the same time at different places.
func (r *run) draw() []fault {
	drawn := []fault{faults[r.random.IntN(len(faults))]}
	if r.random.IntN(3) == 0 {
		if other := faults[r.random.IntN(len(faults))]; other.at != drawn[0].at {
			drawn = append(drawn, other)
		}
	}
	return drawn
}

// next lets faults happen, and then nothing for a while.
func (r *run) next(ctx context.Context, together ...fault) {
	r.t.Helper()
	require.NoError(r.t, r.cause(ctx, together...))
	r.quiet(ctx)
	hold(ctx, calm)
}
