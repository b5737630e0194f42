// SPDX-License-Identifier: Apache-2.0

//go:build invariants

package keptlists

// checkEach is true if every list is compared with the server's encoder.
const checkEach = true
