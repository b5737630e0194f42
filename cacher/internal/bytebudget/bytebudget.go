// SPDX-License-Identifier: Apache-2.0

// Package bytebudget divides one number of bytes between two users, which keep
// serializations of watch events and of lists. It has no lock and no goroutine.
package bytebudget

import "sync/atomic"

// Share is the budget of one of the two users: half of the bytes, and the unused part of
// the other half.
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

// SetLimit changes how many bytes the two users have, and makes them drop the excess.
// Call it holding no lock.
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

// Kept returns how many bytes the user of the share keeps.
func (s *Share) Kept() int64 { return s.kept.Load() }

// Allowance returns how many bytes the user of the share may keep now.
func (s *Share) Allowance() int64 {
	limit := s.limit.Load()
	return limit - min(s.other.kept.Load(), limit/2)
}

// Over reports whether the user of the share keeps more than it may.
func (s *Share) Over() bool { return s.kept.Load() > s.Allowance() }

// Add counts bytes that are kept from now on, or, if n is negative, no longer.
func (s *Share) Add(n int64) { s.kept.Add(n) }

// Settle makes the other user give back this user's half. Call it after Add, holding no
// lock.
func (s *Share) Settle() {
	if s.other.shrink != nil && s.other.Over() {
		s.other.shrink()
	}
}
