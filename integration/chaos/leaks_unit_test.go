// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUsageExceeds(t *testing.T) {
	before := usage{streams: 2, goroutines: []float64{100, 100}, heap: []float64{8 << 20, 8 << 20}}
	require.NoError(t, before.exceeds(before))
	require.ErrorContains(t, usage{streams: 2 + moreStreams + 1}.exceeds(before), "streams of watches")
	leaking := usage{goroutines: []float64{100, 100 + moreGoroutines + 1}, heap: before.heap}
	require.ErrorContains(t, leaking.exceeds(before), "server 1 has 161 goroutines")
	fat := usage{goroutines: before.goroutines, heap: []float64{(8 << 20) + moreHeap + 1, 0}}
	require.ErrorContains(t, fat.exceeds(before), "server 0 uses")
}

// TestNamedFaults: a schedule with a name that no fault has is refused.
func TestNamedFaults(t *testing.T) {
	found, err := named("a server is killed")
	require.NoError(t, err)
	require.Len(t, found, 1)
	_, err = named("an unknown fault")
	require.ErrorContains(t, err, `no fault is called "an unknown fault"`)
}
