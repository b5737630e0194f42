// SPDX-License-Identifier: Apache-2.0

//go:build !invariants

package race

// Invariants reports whether the program was compiled with -tags invariants.
const Invariants = false
