// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"testing"

	"pgregory.net/rapid"
)

// TestStateAgreesWithModel does random operations to a State and to a model
// that keeps every version of everything, and compares them after each. A
// failure prints how to reproduce it; -rapid.checks and -rapid.steps make the
// search longer.
func TestStateAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := newDriver(t, rt)
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
