// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"os"
	"syscall"
	"time"
	"unsafe"
)

// cpuTime reads the CPU clock of another process, which counts nanoseconds and
// has the threads that have ended.
func cpuTime(pid int) (time.Duration, error) {
	const scheduler = 2 // CPUCLOCK_SCHED
	clock := int32(^pid)<<3 | scheduler
	var t syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, uintptr(clock), uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
		return 0, os.NewSyscallError("clock_gettime", errno)
	}
	return time.Duration(t.Nano()), nil
}
