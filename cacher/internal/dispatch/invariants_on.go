// SPDX-License-Identifier: Apache-2.0

//go:build invariants

package dispatch

import "fmt"

// deliveries records the events sent to a watcher, to check that each is sent once and
// in order.
type deliveries struct{ rv, bookmarked uint64 }

// event is called for each event delivered. Events may share a
// resourceVersion (W3), and none follows a bookmark at it (W4).
func (d *deliveries) event(rv uint64) {
	if rv < d.rv {
		panic(fmt.Sprintf("W3: a watcher is told of resourceVersion %d after %d", rv, d.rv))
	}
	if rv <= d.bookmarked {
		panic(fmt.Sprintf("W4: a watcher is told of resourceVersion %d after a bookmark at %d", rv, d.bookmarked))
	}
	d.rv = rv
}

func (d *deliveries) bookmark(rv uint64) {
	if rv < d.rv || rv < d.bookmarked {
		panic(fmt.Sprintf("W4: a watcher gets a bookmark at %d after an event at %d and a bookmark at %d", rv, d.rv, d.bookmarked))
	}
	d.bookmarked = rv
}
