// SPDX-License-Identifier: Apache-2.0

// Package judge holds what clients of an API server saw to what etcd says that
// has happened. The objects are the devices of examples/apiserver; each write
// gives a device a model of its own, so that the judges can tell writes apart.
//
//   - [History] is etcd's own account, read by a watch of all keys, without a gap.
//   - [Streams] judges watches, and names the property that one has broken as
//     etcd's own validators do: Ordered, Unique, Atomic, Reliable, Resumable,
//     Bookmarkable.
//   - [Reads] and [Writes] hold answers to be states that etcd had, and to be as
//     fresh as they must.
//   - [Linearizable] asks porcupine whether there is an order of all operations
//     on a key that explains every answer. Of etcd's history it takes only what
//     became of writes that were never answered.
package judge
