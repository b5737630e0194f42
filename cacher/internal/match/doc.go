// SPDX-License-Identifier: Apache-2.0

// Package match is the one analysis of selectors: a watch or a read asks for a
// Query, whose equalities are found once, when the Query is made.
//
// A watcher is filed under the equality that the fewest objects are likely to
// satisfy (Groups), so that an event is evaluated for the queries that it may
// affect and for no others. A read takes the shortest of the index ranges that
// its equalities allow (Indexes.Scan). Both use the same attributes: keys, key
// prefixes, fields and labels.
//
// The package is pure: no goroutine, no lock, no clock. A Query and Indexes are
// immutable and safe for concurrent use. Groups belongs to its caller, who
// guards it with a lock.
package match
