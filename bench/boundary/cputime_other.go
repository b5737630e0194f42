// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package boundary

import (
	"errors"
	"fmt"
	"time"
)

func cpuTime(int) (time.Duration, error) {
	return 0, fmt.Errorf("the CPU time of another process is read on Linux only: %w", errors.ErrUnsupported)
}
