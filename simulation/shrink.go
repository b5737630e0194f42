// SPDX-License-Identifier: Apache-2.0

package simulation

import "slices"

// Shrink drops operations while the rest still fails, and returns what is left.
// fails is called at most tries times.
func Shrink(operations []Operation, tries int, fails func([]Operation) bool) []Operation {
	for size := len(operations) / 2; size > 0; size /= 2 {
		for from := 0; from+size <= len(operations); {
			if tries == 0 {
				return operations
			}
			tries--
			without := slices.Concat(operations[:from], operations[from+size:])
			if fails(without) {
				operations = without
			} else {
				from += size
			}
		}
	}
	return operations
}
