// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/integration/internal/longform"
)

// long is the long form.
const long = longform.Form("chaos")

// calm is how long nothing goes wrong between two faults.
const calm = time.Second

// The short form's seed.
const seed = 14

// TestFixedFaults is the short form: some faults in a fixed order, from a fixed
// seed. Members are processes, which start sooner than containers.
func TestFixedFaults(t *testing.T) {
	fixed(t, etcdserver.Process,
		"the leader is killed",
		"clients are cut off in the middle of a message",
		"a follower is paused",
		"a server's connections to etcd are silent",
		"the history is compacted and all members are defragmented",
		"the leader is cut off from its peers",
		"a server is killed",
		"the disk of the leader is slow",
		"all members are killed",
		"clients' connections stall",
		"etcd has no space left",
		"clients' connections overtake each other",
		"the history is compacted and all members are defragmented",
	)
}

// TestContainers is the part of the short form that hits members in containers: by
// the engine, and by its networks.
func TestContainers(t *testing.T) {
	reason := etcdserver.Engine(t.Context())
	if os.Getenv("ETCD_MODE") == string(etcdserver.Process) {
		reason = errors.New("ETCD_MODE=process")
	}
	if reason != nil {
		fmt.Printf("%s: skipped, there are no containers: %v\n", t.Name(), reason)
		t.Skip(reason)
	}
	fixed(t, etcdserver.Container,
		"the leader is killed",
		"a follower is paused",
		"the leader is cut off from its peers",
		"a member loses its network",
		"all disks are slow",
	)
}

// fixed causes the faults of the names, one after the other, each for twice the time
// that it lasts at least.
func fixed(t *testing.T, mode etcdserver.Mode, names ...string) {
	noLeaks(t)
	schedule, err := named(names...)
	require.NoError(t, err)
	r := newRun(t, seed, mode)
	r.execute(t.TempDir(), func(ctx context.Context) {
		for _, f := range schedule {
			f.least, f.most = f.least*2, f.least*2
			if f.possible(r) {
				r.next(ctx, f)
			}
		}
	})
}

// TestRandomFaults is the long form.
func TestRandomFaults(t *testing.T) {
	asked := long.Only(t)
	noLeaks(t)
	dir, err := os.MkdirTemp("", "watchcache-chaos-")
	require.NoError(t, err)
	fmt.Printf("again with: %s\npictures of what is not linear in %s\n", asked.Again, dir)
	r := newRun(t, asked.Seed, "")
	r.execute(dir, func(ctx context.Context) {
		for end := time.Now().Add(asked.Duration); time.Now().Before(end); {
			r.next(ctx, r.draw()...)
		}
	})
}

// execute runs the load while chaos lasts, judges what came of it, and prints a report.
func (r *run) execute(dir string, chaos func(context.Context)) {
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
	r.report(v)
	assert.Empty(r.t, v.violations)
	assert.Positive(r.t, v.ops, "operations judged")
	assert.Positive(r.t, v.events, "events judged")
}

// draw draws a fault, or two that happen at the same time at different places.
func (r *run) draw() []fault {
	faults := slices.DeleteFunc(slices.Concat(faults, slowFaults), func(f fault) bool { return !f.possible(r) })
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
