// SPDX-License-Identifier: Apache-2.0

package child

import (
	"os"
	"syscall"
)

// AwaitStopped returns when a child that was sent SIGSTOP has stopped, all its
// threads: until then it may still answer. AwaitStopped fails if the child has
// ended.
func AwaitStopped(pid int) error {
	const (
		byPID   = 1         // P_PID
		stopped = 2         // WSTOPPED
		keep    = 0x1000000 // WNOWAIT: who waits for the child's end is not disturbed
	)
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, byPID, uintptr(pid), 0, stopped|keep, 0, 0)
		switch errno {
		case 0:
			return nil
		case syscall.EINTR:
		default:
			return os.NewSyscallError("waitid", errno)
		}
	}
}
