// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Query is which watchers Cacher.StatusPage describes. The zero value is none of
// them.
type Query struct {
	// Sort is one of Orders; empty: lag. The greatest number, the oldest watch or
	// the first name of the alphabet comes first. Reverse reverses the order.
	Sort    string
	Reverse bool
	// The page begins after Offset watchers and has at most Limit of them; all if
	// Limit is negative.
	Offset, Limit int
}

// orders compare watchers: great numbers, old watches and the first names come first.
var orders = map[string]func(a, b *Watcher) int{
	"lag": func(a, b *Watcher) int {
		return cmp.Or(cmp.Compare(b.Lag, a.Lag), cmp.Compare(b.Queued, a.Queued))
	},
	"queued":    func(a, b *Watcher) int { return cmp.Compare(b.Queued, a.Queued) },
	"bytes":     func(a, b *Watcher) int { return cmp.Compare(b.HeldBytes, a.HeldBytes) },
	"delivered": func(a, b *Watcher) int { return cmp.Compare(b.Delivered, a.Delivered) },
	"age":       func(a, b *Watcher) int { return a.Started.Compare(b.Started) },
	"state": func(a, b *Watcher) int {
		return cmp.Compare(slices.Index(states, a.State), slices.Index(states, b.State))
	},
	"user":      func(a, b *Watcher) int { return strings.Compare(a.Client.User, b.Client.User) },
	"userAgent": func(a, b *Watcher) int { return strings.Compare(a.Client.UserAgent, b.Client.UserAgent) },
	"address":   func(a, b *Watcher) int { return strings.Compare(a.Client.Address, b.Client.Address) },
}

// states has the states of watches as they are sorted.
var states = []State{Parked, Starting, Live}

// Orders returns the names of the orders that watchers can be sorted by, sorted.
func Orders() []string { return slices.Sorted(maps.Keys(orders)) }

// Validate sets the defaults of a query. The error names the field that is invalid.
func (q *Query) Validate() error {
	q.Sort = cmp.Or(q.Sort, "lag")
	switch {
	case orders[q.Sort] == nil:
		return fmt.Errorf("Sort is %q, which is none of %s", q.Sort, strings.Join(Orders(), ", "))
	case q.Offset < 0:
		return fmt.Errorf("Offset is %d and must not be negative", q.Offset)
	}
	return nil
}

// Page sorts the watchers and returns those of the page. No two are equal, so pages
// fit together. The query must be valid.
func (q Query) Page(all []Watcher) []Watcher {
	if q.Limit == 0 || q.Offset >= len(all) {
		return nil
	}
	sorted := make([]*Watcher, len(all)) // to move one costs more than to compare two
	for i := range all {
		sorted[i] = &all[i]
	}
	compare := orders[q.Sort]
	slices.SortFunc(sorted, func(a, b *Watcher) int {
		order := compare(a, b)
		if q.Reverse { // which does not reverse equal ones
			order = -order
		}
		return cmp.Or(order, cmp.Compare(a.ID, b.ID))
	})
	sorted = sorted[q.Offset:]
	if q.Limit > 0 {
		sorted = sorted[:min(q.Limit, len(sorted))]
	}
	page := make([]Watcher, len(sorted))
	for i, w := range sorted {
		page[i] = *w
	}
	return page
}

// Counts counts the open watches of a cache. While watches come and go the numbers are of
// slightly different times.
type Counts struct {
	// Live watches receive each event as it is dispatched. Starting ones receive their
	// initial events, or those since their start. Parked ones were live and catch up.
	Live     int `json:"live"`
	Starting int `json:"starting"`
	Parked   int `json:"parked"`
	// WorstLag is the greatest Watcher.Lag, and WorstLagSeconds the LagSeconds of that
	// watch.
	WorstLag        uint64  `json:"worstLagEvents"`
	WorstLagSeconds float64 `json:"worstLagSeconds"`
}

// State is the state of a watch.
type State string

// The states; see Counts.
const (
	Live     State = "live"
	Starting State = "starting"
	Parked   State = "parked"
)

// Watcher describes one watch. The page /debug/watchcache shows it as JSON, with the
// selection in a form that hides values.
type Watcher struct {
	// ID is unique among the watches of a cache until the cache sleeps.
	ID uint64 `json:"id"`
	// Client sent the request.
	Client
	// Key is the watched key or key prefix. LabelSelector and FieldSelector select
	// objects there. Each is cut after 1 KiB.
	Key           string `json:"-"`
	LabelSelector string `json:"-"`
	FieldSelector string `json:"-"`
	// State is the state of the watch. Parked reports whether it is not live, because it
	// has just begun or its client is slow.
	State  State `json:"state"`
	Parked bool  `json:"-"`
	// Lag is the number of dispatched events that the watcher has not inspected; 0 for a
	// live watcher. LagSeconds is the age of the first of them, or of the oldest event in
	// the window if that one has left it.
	Lag        uint64  `json:"lagEvents"`
	LagSeconds float64 `json:"lagSeconds"`
	// Queued is the number of events that the client has not received, at most Capacity.
	Queued   int `json:"queued"`
	Capacity int `json:"capacity"`
	// Delivered is the number of events sent or queued for the client, including initial
	// events and their end bookmark, and no other bookmarks.
	Delivered uint64 `json:"delivered"`
	// HeldBytes estimates the memory of the watch: its channel, the objects of the queued
	// events, and the state of its initial events unless that is the current one. Watches
	// that began at the same time share that state, and each counts it.
	HeldBytes int64 `json:"heldBytes"`
	// Started is when the watch began.
	Started time.Time `json:"started"`
}

// Ended describes a watch that has ended. The fields are those of Watcher at its end.
type Ended struct {
	ID uint64 `json:"id"`
	Client
	Key           string `json:"-"`
	LabelSelector string `json:"-"`
	FieldSelector string `json:"-"`
	// Reason is a value of the label reason of watchcache_watchers_ended_total.
	Reason    string    `json:"reason"`
	Started   time.Time `json:"-"`
	Ended     time.Time `json:"ended"`
	Delivered uint64    `json:"delivered"`
	Lag       uint64    `json:"lagEvents"`
}

// Client is who sent a request, as far as it is known. Each field may be empty.
type Client struct {
	// User is the name of the authenticated user, after impersonation.
	User string `json:"user"`
	// UserAgent is the header of the request.
	UserAgent string `json:"userAgent"`
	// Address is the host and port that the request came from.
	Address string `json:"address"`
}
