// SPDX-License-Identifier: Apache-2.0

//go:build race

// Package race reports whether the race detector is on, for tests that are too slow
// with it or can't be repeated exactly.
package race

// Enabled reports whether the program was built with the race detector.
const Enabled = true
