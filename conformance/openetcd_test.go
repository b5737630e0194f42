// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestExample opens the example's backend, so that it is known to be right.
func TestExample(t *testing.T) {
	b := openEtcd(t)
	before, err := b.Storage.GetCurrentResourceVersion(t.Context())
	require.NoError(t, err)
	touched, err := b.Touch(t.Context())
	require.NoError(t, err)
	require.Equal(t, before+1, touched, "Touch returns the next version")
	require.NoError(t, b.Compact(t.Context(), touched))
}
