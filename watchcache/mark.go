// SPDX-License-Identifier: Apache-2.0

package watchcache

// Mark holds the numbers from which Kept estimates how much memory a snapshot
// keeps once the state has moved on. A mark does not refer to its snapshot.
type Mark struct {
	// Position is the position of the first event that the trees of the snapshot
	// do not contain. Snapshots with the same position share all their memory.
	Position Position

	bytes      int64 // of the snapshot's elements
	objects    int
	superseded int64 // Stats.Superseded when the snapshot was made
}

// Estimates, in bytes: of the tree nodes that applying one event copies while a
// snapshot shares them, and of the memory that the trees take for one element
// at most.
const (
	copiedPerEvent = 4 << 10
	treePerElement = 64
)

// Mark returns the snapshot's mark. The mark of an earlier version is that of
// the trees that the version is made of.
func (s *Snapshot) Mark() Mark { return s.base.mark }

// markLocked returns the mark of the trees as they are.
func (s *State) markLocked() Mark {
	return Mark{
		Position: s.mu.window.next, bytes: s.mu.bytes, objects: s.mu.trees.primary.Len(),
		superseded: s.mu.window.superseded,
	}
}

// Kept estimates the memory that several snapshots together keep beyond the
// state's. The zero value is the estimate for no snapshots.
type Kept struct{ superseded, bytes, copied, trees int64 }

// With returns the estimate with one more snapshot, given by its mark. now are
// the current statistics of the state.
func (k Kept) With(m Mark, now Stats) Kept {
	return Kept{
		superseded: max(k.superseded, now.Superseded-m.superseded),
		bytes:      k.bytes + m.bytes,
		copied:     max(k.copied, int64(now.Next-m.Position)*copiedPerEvent),
		trees:      k.trees + int64(m.objects)*treePerElement,
	}
}

// Bytes returns the estimate in bytes: the elements that have left the state
// since the oldest snapshot, but no more than all snapshots have, and the tree
// nodes likewise.
func (k Kept) Bytes() int64 { return min(k.superseded, k.bytes) + min(k.copied, k.trees) }

// Hold keeps the events from p on in the window although they are older than
// Config.History and take more than Config.WindowBytes, up to Config.HeldBytes,
// for watchers that replay and have not reached them yet. A call replaces the
// one before; ReleaseHold ends it.
func (s *State) Hold(p Position) { s.held.Store(uint64(p) + 1) }

// ReleaseHold ends the effect of Hold: events are evicted when they are old
// enough.
func (s *State) ReleaseHold() { s.held.Store(0) }

// heldLocked reports whether Hold keeps the oldest event in the window.
func (s *State) heldLocked() bool {
	held := s.held.Load()
	return held > 0 && s.mu.window.first >= Position(held-1)
}
