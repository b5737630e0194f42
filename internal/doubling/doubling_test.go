// SPDX-License-Identifier: Apache-2.0

//go:build unix

package doubling

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// recorder is a test that may fail.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Errorf(string, ...any) { r.failed = true }

func TestCheck(t *testing.T) {
	sorting := func(n int) func() {
		numbers := rand.Perm(n)
		return func() { slices.Sort(numbers) }
	}
	Check(t, 5000, sorting)
	square := func(n int) func() {
		numbers := make([]int, n)
		return func() {
			for range n {
				for i := range numbers {
					numbers[i]++
				}
			}
		}
	}
	r := &recorder{TB: t}
	if Check(r, 200, square); !r.failed {
		t.Error("a square passes")
	}
}
