// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package slowdisk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notification is struct seccomp_notif of linux/seccomp.h.
type notification struct {
	id    uint64
	pid   uint32
	flags uint32
	data  struct {
		nr                 int32
		arch               uint32
		instructionPointer uint64
		args               [6]uint64
	}
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	val   int64
	error int32
	flags uint32
}

// Where struct seccomp_data has what the filter looks at.
const (
	offsetOfNumber = 0
	offsetOfArch   = 4
)

// run starts the goroutine that starts the command, and returns when the command
// runs or can't.
func (d *Disk) run(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	go d.claim(cmd, started)
	return <-started
}

// claim takes a thread for the command. Filters are a thread's, and are inherited by
// what the thread starts, so that the thread must not run other goroutines: it is not
// unlocked, and so ends with this one. With a thread end those of its children that
// asked for it by PR_SET_PDEATHSIG, so that a thread which has children is not taken.
func (d *Disk) claim(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	children, err := os.ReadFile("/proc/thread-self/children")
	switch {
	case err != nil:
		close(d.exited)
		started <- fmt.Errorf("%w: which children a thread has is not known: %w", ErrUnavailable, err)
		runtime.UnlockOSThread()
	case len(bytes.TrimSpace(children)) > 0:
		// Until another thread is taken this one is kept from being it.
		other := make(chan error, 1)
		go d.claim(cmd, other)
		started <- <-other
		runtime.UnlockOSThread()
	default:
		d.start(cmd, started)
	}
}

// start starts the command on the thread of the goroutine, and returns after its end.
func (d *Disk) start(cmd *exec.Cmd, started chan<- error) {
	defer close(d.exited)
	listener, err := install()
	if err != nil {
		started <- fmt.Errorf("%w: %w", ErrUnavailable, err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var answering sync.WaitGroup
	own := uint32(unix.Gettid())
	answering.Go(func() { d.answer(ctx, listener, own) })
	err = cmd.Start()
	started <- err
	if err == nil {
		d.failure = cmd.Wait()
	}
	cancel()
	_ = unix.Fdatasync(-1) // the last call that is answered
	answering.Wait()
	_ = unix.Close(listener)
}

// install gives the calling thread the filter, and returns where its calls come.
func install() (listener int, err error) {
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetOfArch},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: arch, Jt: 0, Jf: 4},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetOfNumber},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FSYNC, Jt: 1, Jf: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FDATASYNC, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	// Without this only root may.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("prctl(PR_SET_NO_NEW_PRIVS): %w", err)
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&filter)))
	if errno != 0 {
		return 0, fmt.Errorf("seccomp(SECCOMP_SET_MODE_FILTER): %w", errno)
	}
	return int(fd), nil
}

// answer answers calls, each in a goroutine of its own, until one comes from the
// thread with the number last, and all are answered.
func (d *Disk) answer(ctx context.Context, listener int, last uint32) {
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		var call notification // the kernel wants zeros
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&call)))
		switch {
		case errno == 0:
		case errors.Is(errno, unix.EINTR), errors.Is(errno, unix.ENOENT): // a signal; the caller was killed
			continue
		default:
			return // closed
		}
		if call.pid == last {
			respond(listener, call.id)
			return
		}
		calls.Go(func() {
			d.hold(ctx)
			respond(listener, call.id)
		})
	}
}

// respond says that a call has succeeded. That the caller was killed meanwhile is no
// failure.
func respond(listener int, id uint64) {
	answer := response{id: id}
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&answer)))
		if !errors.Is(errno, unix.EINTR) {
			return
		}
	}
}
