// SPDX-License-Identifier: Apache-2.0

package child

import "syscall"

// Attributes lets the kernel end a process when the one that started it dies
// without cleaning up, as a test does when it times out.
func Attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
