// SPDX-License-Identifier: Apache-2.0

// Package dedup makes a decoded object use the memory of equal parts of another
// object: that of its previous state, or of a neighbour that was made from the
// same template. The garbage collector frees a part that nobody refers to any more:
// there are only two small tables, one of strings and one of JSON objects and arrays
// with few entries, in which each gives way to another one. A part of JSON that is
// equal to one in its table is replaced wherever it stands.
//
// [Sharer.Share] makes a plan of each type once, by reflection: at which offsets
// the type has strings, and at which it has other references. Sharing is then a
// walk over both objects side by side. A string, map, slice or pointer whose
// content is deeply equal on both sides is replaced by that of the other object.
// Nothing that can be seen of an object changes, but the capacity of its slices,
// which becomes their length: an append by a reader must not write to memory that
// objects share. Arrays of JSON that have room are cut to their length.
//
// Parts that the walk can't compare are left as they are: values of interfaces
// with methods, maps that are none of those that API types usually have, and
// values that readers may write to although they only read: those with locks, and
// quantities outside of maps, which keep the string that they were last shown as.
package dedup
