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
// Indexes that nobody has declared are built on demand: Indexes.Scan counts the elements that
// reads look at in vain, and once a second Indexes.Adapt has the state build the index that was
// missed most (watchcache.State.AddIndex), and drop indexes that do not pay. Later reads find it
// in Indexes.ranges, with the declared ones.
//
// Clients choose selectors: the weight of a query bounds what one evaluation costs, and decides who
// evaluates it. Goroutines take turns with heavy ones.
//
// The package has no goroutine and no clock. A Query is immutable, and Indexes and Postings
// are safe for concurrent use. Groups belongs to its caller, who guards it with a lock.
package match
