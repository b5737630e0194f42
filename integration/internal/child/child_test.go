// SPDX-License-Identifier: Apache-2.0

package child

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTailKeepsTheEnd(t *testing.T) {
	var log Tail
	require.Empty(t, log.String())
	for i := range 10_000 {
		fmt.Fprintf(&log, "line %d\n", i)
	}
	require.Len(t, log.String(), tailBytes)
	require.True(t, strings.HasSuffix(log.String(), "line 9999\n"))
}
