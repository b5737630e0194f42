// SPDX-License-Identifier: Apache-2.0

//go:build !seeded

package simulation

// Seeded: goroutines are scheduled by Go, as it comes.
const Seeded = false

func bySeed(uint64) (end func()) { return func() {} }
