// SPDX-License-Identifier: Apache-2.0

// Package freshness keeps reads as fresh as their clients ask for. It has
//
//   - the requests for storage's resourceVersion, which consistent reads share
//     ([VersionRequests]: ReadIndex in Raft's terms),
//   - the reads that wait until the cache has reached a version ([WaitingReads]),
//   - the requests for the progress of the cache's watch, without which an idle
//     cache could not know that it is fresh, and the detection of a watch that
//     hangs ([ProgressRequester]),
//   - the admission to storage of reads that have waited in vain ([Admission]).
//
// docs/concurrency.md has its locks and goroutines. A waiting read has no goroutine.
package freshness
