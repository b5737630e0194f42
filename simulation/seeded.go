// SPDX-License-Identifier: Apache-2.0

//go:build seeded

package simulation

import _ "unsafe" // for go:linkname

// Seeded: goroutines are scheduled by the seed.
const Seeded = true

// seedBubbles is in the runtime that hack/seeded writes.
//
//go:linkname seedBubbles runtime.seedBubbles
func seedBubbles(seed uint64, on bool)

// bySeed has the goroutines of bubbles scheduled by the seed until end is called.
func bySeed(seed uint64) (end func()) {
	seedBubbles(seed, true)
	return func() { seedBubbles(0, false) }
}
