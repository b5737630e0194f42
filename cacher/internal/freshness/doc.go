// SPDX-License-Identifier: Apache-2.0

// Package freshness makes reads as fresh as their clients request. A consistent read must
// show every write that was acknowledged before it began. It gets that in two steps:
//
//  1. It requests storage's current resourceVersion, rv, at some time after the read began
//     ([VersionRequests], ReadIndex in Raft's terms).
//  2. It waits until the cache has applied every event up to rv ([WaitingReads]), then reads
//     the cache.
//
// Step 1. Reads share requests. An answer may serve a read only if its request was sent
// after the read began, so reads that arrive during a request share the next one. If a
// request takes longer than hedgeDelay, the requester sends another beside it, up to
// versionsInFlight with doubling delays: one member of storage may be paused, or one
// connection cut. A later request serves the readers of the earlier ones too, so its answer
// cancels them. A request that fails fails its readers only if no other request can serve
// them.
//
// Step 2. Waiting reads are ordered by rv. The feed calls Reached after each event and wakes
// those that it satisfies; a waiting read has no goroutine. But rv counts the writes to all
// resources, and storage sends a quiet resource no events. So while reads wait,
// [ProgressRequester] requests progress reports for the cache's watch: at once for the
// first read, then every progressInterval. Reads of a busy resource wait for its next change
// first, which says as much as a report. The requester also requests a report if no event
// has followed an event for progressInterval, since more events of that revision could
// follow and the cache must not show a part of it.
//
// If storage is ahead of the watch and the watch makes no progress for hangTimeout although
// reports were requested, it hangs, e.g. because its etcd member is unresponsive. hangs.go
// then has it replaced. If vainWatches replacements in a row make no progress, storage is
// silent: it answers requests but reports no progress. Consistent reads then go to storage,
// and the requester probes with a doubling pause whether storage reports again.
//
// A LIST that waits too long falls back to storage, at most a few at a time and in any
// period ([Admission]).
//
// docs/concurrency.md lists locks and goroutines.
package freshness
