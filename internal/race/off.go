// SPDX-License-Identifier: Apache-2.0

//go:build !race

// Package race reports whether the race detector is enabled, for tests that are too slow or not
// exactly repeatable with it.
package race

// Enabled reports whether the program was built with the race detector.
const Enabled = false
