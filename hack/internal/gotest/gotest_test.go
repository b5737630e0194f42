// SPDX-License-Identifier: Apache-2.0

package gotest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPattern(t *testing.T) {
	t.Parallel()
	require.Equal(t, "^TestA$", Pattern("TestA"))
	require.Equal(t, "^TestA$|^TestB$/^sub$", Pattern("TestA|TestB/sub"))
}
