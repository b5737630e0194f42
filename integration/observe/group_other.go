// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package observe

import "syscall"

// apart leaves the attributes as they are where there are no process groups.
func apart(attributes *syscall.SysProcAttr) *syscall.SysProcAttr { return attributes }
