// SPDX-License-Identifier: Apache-2.0

//go:build invariants

package keptlists

// checkEach: every list is compared with the output of the server's own encoder.
const checkEach = true
