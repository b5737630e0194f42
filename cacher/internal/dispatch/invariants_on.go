// SPDX-License-Identifier: Apache-2.0

//go:build invariants

package dispatch

import (
	"fmt"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// deliveries records the events sent to a watcher, to check that each is sent once and
// in order.
type deliveries struct{ rv, bookmarked uint64 }

// event is called for each event delivered. Events may share a
// resourceVersion (W3), and none follows a bookmark at it (W4), except one that is late.
func (d *deliveries) event(e *watchcache.Event) {
	if e.RV < d.rv {
		panic(fmt.Sprintf("W3: a watcher is told of resourceVersion %d after %d", e.RV, d.rv))
	}
	if e.RV < d.bookmarked || e.RV == d.bookmarked && !e.Late {
		panic(fmt.Sprintf("W4: a watcher is told of resourceVersion %d after a bookmark at %d", e.RV, d.bookmarked))
	}
	d.rv = e.RV
}

func (d *deliveries) bookmark(rv uint64) {
	if rv < d.rv || rv < d.bookmarked {
		panic(fmt.Sprintf("W4: a watcher gets a bookmark at %d after an event at %d and a bookmark at %d", rv, d.rv, d.bookmarked))
	}
	d.bookmarked = rv
}
