// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	prepareProcess()
	goleak.VerifyTestMain(m,
		// A shipped cacher leaves goroutines behind: those of waiting reads for
		// three seconds, others for good when it hangs in Stop.
		goleak.IgnoreAnyFunction("k8s.io/apiserver/pkg/storage/cacher.(*watchCache).waitUntilFreshLocked.func2"),
		goleak.IgnoreAnyFunction("k8s.io/apiserver/pkg/storage/cacher.(*Cacher).Stop"),
		goleak.IgnoreAnyFunction("k8s.io/apiserver/pkg/storage/cacher.(*Cacher).startCaching"),
		goleak.IgnoreAnyFunction("k8s.io/apiserver/pkg/storage/cacher.(*cacheWatcher).processInterval"),
	)
}

// toy is a size at which every row takes a moment.
var toy = size{objects: 200, seconds: 0.1, watchers: 2, burst: 500, repeats: 2, roundTrip: 200 * time.Millisecond, patience: 5 * time.Second}

// The test asserts counts, which do not depend on the machine, but not times.
// Nor are requests to storage: one is sent beside another that is slow. Package
// cacher's tests count those in virtual time.
func TestEveryRow(t *testing.T) {
	exact := map[string]bool{"watchers closed": true, "closed": true, "% lost": true, "healthy closed": true, "% lost by healthy": true,
		"candidates touched": true, "hung": true, "goroutines left": true, "caches without history": true}
	asserted := map[string]bool{}
	for _, row := range table() {
		t.Run(row.name, func(t *testing.T) {
			results, _, err := measureRow(t.Context(), row, settings{pairs: 1, size: toy, resting: math.MaxInt})
			require.NoError(t, err)
			require.Len(t, results, len(row.figures))
			for i, r := range results {
				require.Equal(t, 1, r.Ours.N, "%s: ours was not measured", r.Figure)
				if exact[r.Figure] {
					asserted[r.Figure] = true
					require.NotNil(t, r.Met, "%s", r.Figure)
					require.True(t, *r.Met, "%v", r)
				}
				goal := row.figures[i].goal
				if goal.against != "" {
					require.Contains(t, row.subjects, goal.against, "%s: its goal is against what is not measured", r.Figure)
				}
			}
		})
	}
	require.Equal(t, exact, asserted, "figures that are counted")
}

// A ratio is judged by the median of the pairs' own ratios, an absolute goal
// by the worst measurement.
func TestGoals(t *testing.T) {
	values := map[subject][]float64{ours: {1, 10, 3}, shipped: {10, 200, 3}, floor: {1, 5, 3}}
	for _, test := range []struct {
		goal goal
		met  bool
		text string
	}{
		{ofShipped(0.1), true, "≤ shipped / 10"},
		{timesLess(20), false, "≤ shipped / 20"},
		{ofFloor(1), true, "≤ 1 × floor"},
		{ofFloor(0.9), false, "≤ 0.9 × floor"},
		{atMost(10), true, "≤ 10"},
		{atMost(9), false, "≤ 9"},
		{goal{most: 3, byMedian: true}, true, "≤ 3"},
	} {
		r := figure{unit: count, goal: test.goal}.result("work", values)
		require.NotNil(t, r.Met)
		require.Equal(t, test.met, *r.Met, "%s of %v", test.text, r)
		require.Equal(t, test.text, r.Goal)
	}
	require.Nil(t, figure{goal: noGoal()}.result("work", values).Met)
	require.Nil(t, figure{goal: ofFloor(1)}.result("work", map[subject][]float64{ours: {1}}).Met, "nothing to judge by")
}

// The rows of growth say what they measure at other numbers than these.
func TestGrowth(t *testing.T) {
	small := toy
	small.objects = 1000
	for _, row := range growthRows() {
		t.Run(row.name, func(t *testing.T) {
			results, _, err := measureRow(t.Context(), row, settings{pairs: 1, size: small, resting: math.MaxInt})
			require.NoError(t, err)
			require.Len(t, results, len(row.figures))
			for _, r := range results {
				require.Equal(t, 1, r.Ours.N, "%s: ours was not measured", r.Figure)
			}
		})
	}
}
