// SPDX-License-Identifier: Apache-2.0

// Package freshness makes reads as fresh as their clients request. A consistent read must show
// every write acknowledged before it began. That takes two steps:
//
//  1. It requests storage's current resourceVersion, rv, at some time after the read began
//     ([VersionRequests], ReadIndex in Raft's terms).
//  2. It waits until the cache has applied every event up to rv ([WaitingReads]), then reads
//     the cache.
//
// Step 1. An answer may serve a read only if its request was sent after the read began, so reads
// that arrive during a request share the next one. If a request takes longer than hedgeDelay, e.g.
// because an etcd member is paused, we send another beside it, up to versionsInFlight with doubling
// delays. A later request serves the readers of the earlier ones as well, so its answer cancels
// them.
//
// Step 2. Waiting reads are ordered by rv and have no goroutines. The feed calls Reached after each
// event. But rv counts the writes to all resources, and storage sends a quiet resource no events.
// So while reads wait, [ProgressRequester] requests progress reports for the cache's watch: at once
// for the first read, then every progressInterval. Reads of a busy resource wait for its next
// change first, which says as much as a report. The requester also requests a report if nothing
// follows an event for progressInterval: more events of its revision could follow, and the cache
// must not show a part of it.
//
// A watch hangs, e.g. because its etcd member is unresponsive, if storage is ahead of it and it
// makes no progress for hangTimeout although reports were requested. We replace it. If vainWatches
// replacements in a row make no progress, storage is silent, i.e. it answers requests but reports no
// progress. Consistent reads then go to storage until a probe, repeated with a doubling pause,
// receives a report.
//
// A LIST that waits too long falls back to storage; [Admission] limits how many do.
//
// docs/concurrency.md lists locks and goroutines.
package freshness
