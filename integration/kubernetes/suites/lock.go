// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// folderLock is held on the folder of -dir, until this process ends: shared by all who
// run tests there, exclusive while the copy of Kubernetes is made.
type folderLock struct{ file *os.File }

// locks keeps the files open: a file that is collected is closed, and its lock is gone.
var locks []folderLock

// share takes the lock, and waits while another process makes the copy.
func (s *settings) share() (folderLock, error) {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return folderLock{}, err
	}
	file, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return folderLock{}, err
	}
	l := folderLock{file}
	locks = append(locks, l)
	return l, l.shared()
}

func (l folderLock) shared() error { return l.flock(syscall.LOCK_SH) }

// exclusive fails while another process runs tests in the folder: these would lose their
// copy.
func (l folderLock) exclusive() error {
	if err := l.flock(syscall.LOCK_EX | syscall.LOCK_NB); err != nil {
		return fmt.Errorf("%w: another run uses the copy, which is that of another go.mod or repository; await its end, or choose another folder with -dir", err)
	}
	return nil
}

func (l folderLock) flock(how int) error {
	for {
		switch err := syscall.Flock(int(l.file.Fd()), how); err {
		case nil:
			return nil
		case syscall.EINTR:
		default:
			return fmt.Errorf("lock %s: %w", l.file.Name(), err)
		}
	}
}
