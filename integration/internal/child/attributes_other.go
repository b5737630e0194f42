// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package child

import "syscall"

// Attributes is empty where no process can be bound to its parent's life.
func Attributes() *syscall.SysProcAttr { return nil }
