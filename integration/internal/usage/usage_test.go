// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExceeds(t *testing.T) {
	before := Server{Goroutines: 100, Heap: 8 << 20}
	require.NoError(t, before.Exceeds(before))
	require.ErrorContains(t, Server{Goroutines: 100 + MoreGoroutines + 1}.Exceeds(before), "has 161 goroutines, and 100 before")
	require.ErrorContains(t, Server{Heap: (8 << 20) + MoreHeap + 1}.Exceeds(before), "uses 72.0 MiB, and 8.0 before")
}
