// SPDX-License-Identifier: Apache-2.0

// Package heapsize estimates the memory that a decoded object takes: the
// struct and all that its pointers, strings, slices, maps and interfaces
// lead to, with what the allocator rounds up.
//
// [Of] makes a plan of each type once, by reflection: at which offsets the
// type has strings, and at which it has other references. Sizing an object is
// then a walk over those places in memory, which hardly allocates and needs no
// method of the object, so that internal types, which have no serialization
// of their own, are counted as exactly as versioned ones.
//
// The estimate is that of a freshly decoded object, in which every string has
// memory of its own. Where several references share memory, each is counted:
// the estimate is then above the truth. The estimate is below the truth in
// these places, which are counted as the words that they take and not followed:
// functions, channels, unsafe pointers, types of the packages time, reflect,
// context, runtime and sync, and structs that have a field of package sync,
// because the others of their fields may be guarded by it.
package heapsize
