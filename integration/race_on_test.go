// SPDX-License-Identifier: Apache-2.0

//go:build race

package integration

// raceDetector says whether the tests, and so the server, are built with it.
const raceDetector = true
