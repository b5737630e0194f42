// SPDX-License-Identifier: Apache-2.0

// Package bytebudget divides one number of bytes between two users, which keep
// what can be made again: the serializations of watch events and those of lists.
// The package has no lock and no goroutine.
package bytebudget

import "sync/atomic"

// Share is what one of the two users may keep: half of the bytes, and of the
// other half what the other user does not keep.
type Share struct {
	limit *atomic.Int64 // of both shares
	kept  atomic.Int64
	other *Share
	// shrink makes the user drop until Over is false.
	shrink func()
}

// New returns two shares of limit bytes; of nothing if limit is negative.
func New(limit int64) (*Share, *Share) {
	both := &atomic.Int64{}
	both.Store(limit)
	a, b := &Share{limit: both}, &Share{limit: both}
	a.other, b.other = b, a
	return a, b
}

// SetLimit changes how many bytes the two users have, and makes them drop what is
// beyond that. Call it holding no lock.
func (s *Share) SetLimit(limit int64) {
	if s.limit.Swap(limit) <= limit {
		return
	}
	for _, user := range []*Share{s, s.other} {
		if user.shrink != nil && user.Over() {
			user.shrink()
		}
	}
}

// OnShrink sets the function that makes the user of the share drop until Over is
// false. The other user calls it, holding no lock. Set it before the shares are
// used.
func (s *Share) OnShrink(shrink func()) { s.shrink = shrink }

// None reports whether nothing may be kept.
func (s *Share) None() bool { return s.limit.Load() < 0 }

// Kept returns what the user of the share keeps, in bytes.
func (s *Share) Kept() int64 { return s.kept.Load() }

// Allowance returns what the user of the share may keep now, in bytes.
func (s *Share) Allowance() int64 {
	limit := s.limit.Load()
	return limit - min(s.other.kept.Load(), limit/2)
}

// Over reports whether the user of the share keeps more than it may.
func (s *Share) Over() bool { return s.kept.Load() > s.Allowance() }

// Add counts bytes that are kept from now on, or, if n is negative, no longer.
func (s *Share) Add(n int64) { s.kept.Add(n) }

// Settle makes the other user drop what it keeps of this user's half. Call it
// after Add, holding no lock.
func (s *Share) Settle() {
	if s.other.shrink != nil && s.other.Over() {
		s.other.shrink()
	}
}
