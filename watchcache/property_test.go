// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestStateAgreesWithModel does random operations to a State and to a model
// that keeps every version of everything, and compares them after each. A
// failure prints how to reproduce it; -rapid.checks and -rapid.steps make the
// search longer.
func TestStateAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := newDriver(t, &checker{rt.Errorf, rt.FailNow}, func(what string, n int) int {
			return rapid.IntRange(0, n-1).Draw(rt, what)
		})
		actions := map[string]func(*rapid.T){
			"": func(rt *rapid.T) { d.check(rapid.IntRange(0, 3).Draw(rt, "every version") == 0) },
		}
		for name, operation := range d.operations() {
			actions[name] = func(*rapid.T) { operation() }
		}
		rt.Repeat(actions)
		d.check(true)
	})
}

// FuzzState drives the same comparison from bytes.
func FuzzState(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("the quick brown fox jumps over the lazy dog"))
	f.Add(slices.Repeat([]byte{0, 0, 1, 2, 3}, 40))  // changes that fit
	f.Add(slices.Repeat([]byte{2, 149, 5, 6, 7}, 9)) // bursts
	all := make([]byte, 512)
	for i := range all {
		all[i] = byte(i * 37)
	}
	f.Add(all)

	f.Fuzz(func(t *testing.T, input []byte) {
		input = input[:min(len(input), 1024)]
		choose := func(_ string, n int) int {
			if len(input) == 0 || n == 1 {
				return 0
			}
			chosen := int(input[0]) % n
			input = input[1:]
			return chosen
		}
		d := newDriver(t, &checker{t.Errorf, t.FailNow}, choose)
		operations := d.operations()
		names := slices.Sorted(maps.Keys(operations))
		for len(input) > 0 {
			operations[names[choose("operation", len(names))]]()
			d.check(choose("every version", 4) == 0)
		}
		d.check(true)
	})
}
