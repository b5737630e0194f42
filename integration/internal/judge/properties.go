// SPDX-License-Identifier: Apache-2.0

package judge

import "fmt"

// Property is what clients may rely on.
type Property string

// The properties of watches. The first six have the names of etcd's validators;
// the others are what Kubernetes adds.
const (
	// Ordered: versions do not fall from one event to the next.
	Ordered Property = "Ordered"
	// Unique: no event comes twice.
	Unique Property = "Unique"
	// Atomic: a watch that goes on after a revision has delivered all events of it.
	Atomic Property = "Atomic"
	// Reliable: no event is missing between two that came.
	Reliable Property = "Reliable"
	// Resumable: the first event after the version that the watch was asked to
	// begin after is the next one of the history.
	Resumable Property = "Resumable"
	// Bookmarkable: every event up to a bookmark's version comes before the
	// bookmark, and none after it.
	Bookmarkable Property = "Bookmarkable"
	// Exact: each event is one of the history, as its selection sees it: ADDED,
	// MODIFIED or DELETED, with the content, and of a deletion the content before
	// and the version of the deletion.
	Exact Property = "Exact"
	// Initial: a watch that begins with the state delivers exactly a state that
	// was, not older than it may be, and marks its end if it was asked to.
	Initial Property = "Initial"
	// Complete: a watch reaches the version that it has to, unless it is told 410.
	Complete Property = "Complete"
)

// The properties of reads and writes.
const (
	// Durable: etcd has what was acknowledged, under the version that was told.
	Durable Property = "Durable"
	// Once: no write is applied twice.
	Once Property = "Once"
	// Fresh: an answer is not older than what was asked for; a consistent one is
	// not older than any write that was acknowledged before the read began.
	Fresh Property = "Fresh"
	// State: an answer is a state that etcd had, at the version that it names.
	State Property = "State"
	// Linear: one order of all operations on a key explains every answer, and
	// keeps to real time.
	Linear Property = "Linear"
	// Released: what served the clients is given back when they have left.
	Released Property = "Released"
)

// Violation is what must not be, with an example.
type Violation struct {
	Property Property
	Text     string
}

// String is one line.
func (v Violation) String() string { return string(v.Property) + ": " + v.Text }

// Violations collects them.
type Violations []Violation

// Add adds one, with a text as fmt.Sprintf makes it.
func (v *Violations) Add(p Property, format string, args ...any) {
	*v = append(*v, Violation{p, fmt.Sprintf(format, args...)})
}
