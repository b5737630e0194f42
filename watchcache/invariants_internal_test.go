// SPDX-License-Identifier: Apache-2.0

//go:build invariants

package watchcache

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Apply and Progress refuse a resourceVersion that would fall, so that W1 can
// be broken from inside only.
func TestResourceVersionNeverFalls(t *testing.T) {
	s := New(Config{})
	s.Replace(nil, 5)
	require.PanicsWithValue(t, "W1: resourceVersion falls from 5 to 4", func() { s.advanceLocked(4, false) })
}
