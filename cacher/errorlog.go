// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"slices"
	"sync"
	"time"
)

// errorsKept is how many different errors a cache remembers.
const errorsKept = 16

// LastError is something that went wrong, and when.
type LastError struct {
	// Summary says what happened and what the cache does about it. The summary
	// is one of a few sentences, and names no object.
	Summary string `json:"summary"`
	// Message has the details. The message may have the keys of objects, but
	// not their content.
	Message string `json:"message"`
	// Time is when it happened last, and Times how often it has.
	Time  time.Time `json:"time"`
	Times int       `json:"times,omitempty"`
}

// errorLog is the latest errors of a cache, over all the times that it was
// awake.
type errorLog struct {
	mu struct {
		sync.Mutex
		latest []LastError // the latest last; no two with one text
	}
}

// add notes an error. An error that is there already is counted.
func (l *errorLog) add(summary string, err error, now time.Time) {
	e := LastError{Summary: summary, Message: withoutContent(err).Error(), Time: now, Times: 1}
	l.mu.Lock()
	defer l.mu.Unlock()
	same := slices.IndexFunc(l.mu.latest, func(o LastError) bool { return o.Summary == summary && o.Message == e.Message })
	switch {
	case same >= 0:
		e.Times += l.mu.latest[same].Times
		l.mu.latest = slices.Delete(l.mu.latest, same, same+1)
	case len(l.mu.latest) == errorsKept:
		l.mu.latest = slices.Delete(l.mu.latest, 0, 1)
	}
	l.mu.latest = append(l.mu.latest, e)
}

// all returns the errors, the latest first.
func (l *errorLog) all() []LastError {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Clone(l.mu.latest)
	slices.Reverse(all)
	return all
}
