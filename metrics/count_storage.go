// SPDX-License-Identifier: Apache-2.0

package metrics

import "time"

// FollowSilence has the metrics show what silence returns when they are asked: for
// how long nothing was heard of the storage. The function must be safe for
// concurrent use. Unlike the other methods it allocates.
func (r *Resource) FollowSilence(silence func() time.Duration) {
	if s := r.load(); s != nil {
		s.silence.Store(&silence)
	}
}

// Relist counts a full resynchronisation with storage, when it has succeeded.
func (r *Resource) Relist(cause RelistCause) {
	if s := r.load(); s != nil {
		pick(s.relists[:], cause).Add(1)
	}
}

// WatchBroken counts a watch on storage that broke and was resumed.
func (r *Resource) WatchBroken() {
	if s := r.load(); s != nil {
		s.watchesBroken[0].Add(1)
	}
}

// Undeliverable counts an event or an object that the storage could not
// deliver though it answers.
func (r *Resource) Undeliverable() {
	if s := r.load(); s != nil {
		s.undeliverable[0].Add(1)
	}
}

// ConsistencyCheck counts a comparison of the cache with its storage.
func (r *Resource) ConsistencyCheck(result CheckResult) {
	if s := r.load(); s != nil {
		pick(s.consistency[:], result).Add(1)
	}
}
