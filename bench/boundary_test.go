// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// toyBoundary is a size at which a row of the boundary takes seconds.
var toyBoundary = size{objects: 60, seconds: 0.2, watchers: 5, repeats: 10, informers: 30, patience: full.patience}

// boundaryRow returns a row by its name.
func boundaryRow(t *testing.T, o servers, name string) row {
	t.Helper()
	for _, row := range boundaryTable(o, toyBoundary) {
		if row.name == name {
			return row
		}
	}
	require.Fail(t, "there is no such row", name)
	return row{}
}

// Servers in two forms are compiled, started, measured and ended, and the report
// has what the row promises. Times are not asserted.
func TestBoundary(t *testing.T) {
	program, err := compileServers(t.TempDir())
	require.NoError(t, err)
	o := servers{program: program, flags: []string{"--watch-cache-encoding-bytes=1000000"}}
	s := settings{pairs: 1, size: toyBoundary, boundary: true, breakdown: true, resting: 1 << 20}
	r := report{Boundary: true}
	measured := func(t *testing.T, name string) []result {
		results, parts, err := measureRow(t.Context(), boundaryRow(t, o, name), s)
		require.NoError(t, err)
		for _, x := range results {
			require.Equal(t, 1, x.Ours.N, x)
			require.Equal(t, 1, x.Shipped.N, x)
			// A difference may be negative on a busy machine.
			if x.Figure != figureCPULess {
				require.Positive(t, x.Ours.Median, x)
				require.Positive(t, x.Shipped.Median, x)
			}
		}
		for _, p := range parts {
			sum := 0.0
			for _, share := range p.Of {
				sum += share
			}
			// A profile takes a hundred samples for each second of CPU time: of a
			// server that is idle most of the time there may be none.
			if p.Seconds > 0 {
				require.InDelta(t, 1, sum, 1e-9, "%+v", p)
			}
		}
		r.Results, r.Shares = append(r.Results, results...), append(r.Shares, parts...)
		return results
	}
	byFigure := func(results []result, figure string) result {
		for _, x := range results {
			if x.Figure == figure {
				return x
			}
		}
		require.Fail(t, "there is no such figure", figure)
		return result{}
	}

	t.Run("lists among changes", func(t *testing.T) {
		results := measured(t, "LIST rv=0, JSON, 100 changes/s, 4 lists/s")
		wire := byFigure(results, figureWire)
		body := float64(toyBoundary.objects * 3500)
		require.InEpsilon(t, body, wire.Ours.Median, 0.1, "a list is its objects")
		require.InEpsilon(t, body, wire.Shipped.Median, 0.1, "a list is its objects")
		require.Len(t, r.Shares, 2)
	})
	t.Run("the initial state", func(t *testing.T) {
		results := measured(t, "watch with the initial state, 20 at once")
		require.Equal(t, 1, byFigure(results, figureCPU).Plain.N)
		for _, p := range r.Shares[2:] {
			require.Positive(t, p.Seconds, "the profile of %s is empty", p.Subject)
		}
		require.Len(t, r.Shares, 5)
	})
	t.Run("events", func(t *testing.T) {
		s.breakdown, s.subjects = false, []subject{ours, shipped, floor}
		results := measured(t, "an event to 200 watchers, 20/s")
		wire := byFigure(results, figureWire)
		require.InEpsilon(t, 3600, wire.Ours.Median, 0.1, "a delivery is an object")
		require.InEpsilon(t, wire.Ours.Median, wire.Floor.Median, 0.1, "the floor sends the same")
	})
	t.Run("report", func(t *testing.T) {
		var out bytes.Buffer
		require.NoError(t, r.markdown(&out))
		require.Contains(t, out.String(), "| work | ours | shipped | plain | floor | ours / shipped | plain / shipped | ours / floor | goal | |\n")
		require.Regexp(t, `\| LIST rv=0, JSON, 100 changes/s, 4 lists/s: CPU less that of the changes \| .* \| – \| – \|\n\| – CPU \| `, out.String())
		require.Regexp(t, `\n\| watch with the initial state, 20 at once \| ours \| \S+ .s \| \d+ %, `, out.String())
		require.Contains(t, out.String(), "| TLS and frames | garbage collection | the rest |\n")
	})
	t.Run("a server that does not start", func(t *testing.T) {
		o.flags = []string{"--no-such-flag"}
		s.subjects = []subject{ours}
		_, _, err := measureRow(t.Context(), boundaryRow(t, o, "LIST rv=0, JSON"), s)
		require.ErrorContains(t, err, "the server ours ended before it served")
		require.ErrorContains(t, err, "unknown flag: --no-such-flag")
	})
}

// The rows have names of their own and figures, and goals that can be judged.
func TestBoundaryTable(t *testing.T) {
	names := map[string]bool{}
	for _, row := range boundaryTable(servers{}, fullBoundary) {
		require.False(t, names[row.name], row.name)
		names[row.name] = true
		require.NotContains(t, row.name, "|")
		for _, f := range row.figures {
			require.Contains(t, []subject{"", shipped}, f.goal.against, "%s: %s", row.name, f.name)
		}
	}
	for _, n := range []string{"1,000", "5,000", "20,000", "100,000"} {
		require.True(t, names["LIST rv=0 of "+n+" devices"], n)
	}
}
