// SPDX-License-Identifier: Apache-2.0

// Package slowdisk runs a process for which fsync and fdatasync take as long as a
// test says, without root, a device or a file system of its own.
//
// The process gets a seccomp filter that hands the two system calls to this
// package, which answers them: at once, or after a delay. The answer says that the
// data is on the disk, and nothing is written: as with etcd's --unsafe-no-fsync, the
// data survives the end of the process and not that of the machine. The program may
// be linked statically, and may run in a container.
//
// A Linux kernel 5.0 or later on amd64 or arm64 is needed, and that nothing
// around the process forbids seccomp filters: what else confines a container or a CI
// job may do so. [Run] then fails with [ErrUnavailable] and a reason.
package slowdisk

import "errors"

// ErrUnavailable: the kernel, or what confines this process, has no such filters.
var ErrUnavailable = errors.New("fsync can't be made slow here")
