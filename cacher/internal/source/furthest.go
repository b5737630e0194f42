// SPDX-License-Identifier: Apache-2.0

package source

// furthest is how far the watches of a stream have come: to a resourceVersion, and
// to how many events of it. A revision may have several, and a watch that resumes
// may bring some of them again.
type furthest struct {
	version uint64
	events  int
	// at and atEvents are the same for the watch that is open. came: that watch
	// has come further than those before it. advanced: one of them has come
	// further than the stream's beginning.
	at             uint64
	atEvents       int
	came, advanced bool
}

// watchFrom is called when another watch begins.
func (r *furthest) watchFrom() { r.at, r.atEvents, r.came = 0, 0, false }

// begin is called with the resourceVersion that the stream begins after.
func (r *furthest) begin(version uint64) { r.version, r.events = version, 0 }

// note is called for each event, and for each bookmark.
func (r *furthest) note(version uint64, bookmark bool) {
	if version != r.at {
		r.at, r.atEvents = version, 0
	}
	if !bookmark {
		r.atEvents++
	}
	if r.at > r.version || (r.at == r.version && r.atEvents > r.events) {
		r.version, r.events = r.at, r.atEvents
		r.came, r.advanced = true, true
	}
}
