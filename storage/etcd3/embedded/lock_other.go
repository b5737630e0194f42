// SPDX-License-Identifier: Apache-2.0

//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package embedded

import "os"

// lockDir takes no lock, because directories have none on this platform. The database's own lock,
// taken by probeDatabase, excludes a second server.
func lockDir(dir string) (*os.File, error) { return os.Open(dir) }
