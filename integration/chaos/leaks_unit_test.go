// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/integration/internal/usage"
)

func TestUsageExceeds(t *testing.T) {
	before := used{streams: 2, servers: []usage.Server{{Goroutines: 100}, {Goroutines: 100}}}
	require.NoError(t, before.exceeds(before))
	require.ErrorContains(t, used{streams: 2 + moreStreams + 1}.exceeds(before), "streams of watches")
	leaking := used{servers: []usage.Server{{Goroutines: 100}, {Goroutines: 1000}}}
	require.ErrorContains(t, leaking.exceeds(before), "server B: the server has 1000 goroutines")
}

// TestNamedFaults: a schedule with a name that no fault has is refused.
func TestNamedFaults(t *testing.T) {
	found, err := named("a server is killed")
	require.NoError(t, err)
	require.Len(t, found, 1)
	_, err = named("an unknown fault")
	require.ErrorContains(t, err, `no fault is called "an unknown fault"`)
}
