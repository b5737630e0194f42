// SPDX-License-Identifier: Apache-2.0

// Package eager says whether caches build adaptive indexes for little, and drop them soon.
// Nobody but tests changes that. The package holds one flag for the process, and has no
// lock and no goroutine.
package eager

import "sync/atomic"

var indexes atomic.Bool

// Indexes reports whether caches that start now build an index for a single element that
// a read has looked at in vain, and drop one that was not used for some seconds.
func Indexes() bool { return indexes.Load() }

// SetIndexes sets what Indexes returns, for tests.
func SetIndexes(eager bool) { indexes.Store(eager) }
