// SPDX-License-Identifier: Apache-2.0

//go:build invariants

package wire

// checkEach: every list is compared with what the server's own encoder makes of it.
const checkEach = true
