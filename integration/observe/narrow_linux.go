// SPDX-License-Identifier: Apache-2.0

package observe

import "syscall"

// narrow makes a connection that is about to be opened one that holds little: the
// kernels keep a few segments on their way, and these are small.
func narrow(_, _ string, conn syscall.RawConn) error {
	const segment = 536 // bytes; on loopback the default is 64 KiB
	var failed error
	err := conn.Control(func(fd uintptr) {
		if failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, receiveBuffer); failed == nil {
			failed = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, segment)
		}
	})
	if err != nil {
		return err
	}
	return failed
}
