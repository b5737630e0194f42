// SPDX-License-Identifier: Apache-2.0

package cacher

import "errors"

// The package's own errors. The API statuses that clients get are in
// statuses.go.
var (
	// errDoubtful is why a read that must be right is not served by a cache that
	// is known to be wrong.
	errDoubtful = errors.New("the watch cache was found to be wrong and is listed again")
	// errInconsistent is why a cache that was found to be wrong lists again.
	errInconsistent = errors.New("the cache differs from its storage")
	// errLate is what a wait for a state returns that took too long.
	errLate = errors.New("the watch cache is not ready in time")
	// errNoProgress refuses a stream of the initial state that could not be
	// brought up to date. Clients fall back to a list on any error.
	errNoProgress = errors.New("the storage can't report the progress of its watch, so the initial state can't be streamed; list and watch instead")
	// errStatsUnknown is what a cache answers that sleeps and was never asked
	// while it was awake. The server's count of objects then has a gap, not a
	// zero, by which priority and fairness would take its lists for free.
	errStatsUnknown = errors.New("the watch cache sleeps and does not know how many objects there are")
	// errContent stands for an error whose text is an object.
	errContent = errors.New("an object could not be decoded: its kind or version is missing")
)
