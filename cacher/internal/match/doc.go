// SPDX-License-Identifier: Apache-2.0

// Package match analyses the selectors of watches and reads, once, when their [Query] is made.
//
// A watcher is filed under the required equality that the fewest objects are likely to satisfy
// ([Groups]), so that we evaluate an event only for queries that it may affect. A read takes the
// shortest index range that its equalities allow ([Indexes.Scan]). Both use the same attributes:
// keys, key prefixes, fields and labels.
//
// Undeclared indexes are built on demand: [Indexes.Scan] counts the mismatches of reads, and once a
// second [Indexes.Adapt] adds the most needed index to the state and drops indexes that don't pay.
//
// Clients choose selectors, so the weight of a query bounds the cost of one evaluation and decides
// who evaluates it. Goroutines take turns with heavy queries.
//
// The package has no goroutine and no clock.
package match
