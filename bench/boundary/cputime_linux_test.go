// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The CPU clock of a process and what the process says of itself agree.
func TestCPUTime(t *testing.T) {
	own := func() time.Duration {
		var usage syscall.Rusage
		require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
		return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	before := own()
	got, err := cpuTime(os.Getpid())
	require.NoError(t, err)
	// getrusage may lag a tick behind on some kernels.
	require.GreaterOrEqual(t, got+20*time.Millisecond, before)
	require.LessOrEqual(t, got, own()+20*time.Millisecond)
	_, err = cpuTime(1 << 22) // above pid_max
	require.Error(t, err)
}
