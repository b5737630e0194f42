// SPDX-License-Identifier: Apache-2.0

//go:build race

package child

// RaceDetector reports whether the tests are built with it; what they start is
// then built with it, too.
const RaceDetector = true
