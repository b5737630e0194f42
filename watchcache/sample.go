// SPDX-License-Identifier: Apache-2.0

package watchcache

// Sample is where one event of the window is.
type Sample struct {
	Position Position
	RV       uint64
	// Received is the event's, in nanoseconds.
	Received int64
}

// Sample returns up to n events of the window at even distances, the newest and,
// if n is greater than 1, the oldest among them, in order. The number of events between two samples is
// the difference of their positions. The result is empty if the window is.
func (s *State) Sample(n int) []Sample {
	s.mu.RLock()
	defer s.mu.RUnlock()
	w := &s.mu.window
	n = min(n, w.len())
	if n < 1 {
		return nil
	}
	out := make([]Sample, 0, n)
	for i := range n {
		at := w.next - 1
		if n > 1 {
			at = w.first + Position(i*(w.len()-1)/(n-1))
		}
		e := w.at(at)
		out = append(out, Sample{Position: e.Position, RV: e.RV, Received: e.Received})
	}
	return out
}
