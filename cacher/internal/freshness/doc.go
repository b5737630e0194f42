// SPDX-License-Identifier: Apache-2.0

// Package freshness keeps reads as fresh as their clients ask for. The package owns
//
//   - the requests for storage's resourceVersion, which consistent reads share
//     ([VersionRequests]: ReadIndex in Raft's terms),
//   - the reads that wait until the cache has reached a version
//     ([WaitingReads]),
//   - the requests for the progress of the cache's watch, without which an idle
//     cache could not know that it is fresh, and the detection of a watch that
//     hangs ([ProgressRequester]),
//   - the admission to storage of reads that have waited in vain ([Admission]).
//
// Its locks are the mu of VersionRequests, WaitingReads and Admission. Each is
// held for a few fields.
//
// Its goroutines are the version requester, which the first read that waits for
// an answer starts and which ends when none is left; up to four version
// requests, which the requester starts and awaits; and the progress requester,
// which is whoever calls [ProgressRequester.Run]. A waiting read has none.
package freshness
