// SPDX-License-Identifier: Apache-2.0

package slowdisk

import "golang.org/x/sys/unix"

// arch is how the kernel names the processor's system calls.
const arch = unix.AUDIT_ARCH_AARCH64
