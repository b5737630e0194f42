// SPDX-License-Identifier: Apache-2.0

// Package memstore is an in-memory storage.Interface that fails on demand. With it, unit tests
// force rare orders of events, and benchmarks measure the cache without a network.
//
// A Store is a Store of package mvcc that keeps all versions until compaction and returns etcd's
// errors. Tests can break its watches, hold back events, delay responses, or restore an earlier
// version as if from a backup. A Store counts its requests.
package memstore
