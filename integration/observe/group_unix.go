// SPDX-License-Identifier: Apache-2.0

//go:build unix

package observe

import "syscall"

// apart puts a child into a process group of its own, so that Ctrl-C in a terminal
// reaches the parent only, which ends its children in order.
func apart(attributes *syscall.SysProcAttr) *syscall.SysProcAttr {
	if attributes == nil {
		attributes = &syscall.SysProcAttr{}
	}
	attributes.Setpgid = true
	return attributes
}
