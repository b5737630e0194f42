// SPDX-License-Identifier: Apache-2.0

//go:build race

package simulation_test

// raceDetector reports whether the race detector is on.
const raceDetector = true
