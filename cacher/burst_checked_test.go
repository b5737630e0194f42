// SPDX-License-Identifier: Apache-2.0

//go:build race || invariants

package cacher_test

// burstEvents is how many events come at full speed to 1,000 watchers: fewer
// than without the race detector, under which a send costs fifty times as much.
const burstEvents = 2_000

// raced: the race detector or the invariants take memory of their own.
const raced = true
