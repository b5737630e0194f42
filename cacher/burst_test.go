// SPDX-License-Identifier: Apache-2.0

//go:build !race && !invariants

package cacher_test

// burstEvents is how many events come at full speed to 1,000 watchers.
const burstEvents = 20_000

// raced: the race detector or the invariants take memory of their own.
const raced = false
