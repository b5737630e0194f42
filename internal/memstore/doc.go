// SPDX-License-Identifier: Apache-2.0

// Package memstore is a storage.Interface in memory that fails on demand, for
// unit tests and benchmarks: with it a test forces an order of events that a
// real storage would show once in a thousand runs, and a benchmark measures the
// cache and not the network.
//
// A Store is one of package mvcc that keeps every version of every object until
// it is compacted, as etcd does, and returns the same errors. A test can have it
// break its watches, hold back events, answer slowly, or go back to an earlier
// version as if restored from a backup. A Store counts its requests.
package memstore
