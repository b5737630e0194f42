// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !(amd64 || arm64)

package slowdisk

import (
	"fmt"
	"os/exec"
	"runtime"
)

// run never starts the command.
func (d *Disk) run(*exec.Cmd) error {
	close(d.exited)
	return fmt.Errorf("%w: not on %s/%s", ErrUnavailable, runtime.GOOS, runtime.GOARCH)
}
