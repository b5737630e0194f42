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

// Query selects the watchers described by Cacher.StatusPage. The zero value selects none.
type Query struct {
	// Sort is one of Orders, "lag" by default. It puts highest numbers, oldest watches and first
	// names first, unless Reverse is true.
	Sort    string
	Reverse bool
	// The page begins after Offset watchers and has at most Limit of them, or all if Limit is
	// negative.
	Offset, Limit int
}

// orders compare watchers: highest numbers, oldest watches and first names are less.
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

// states in sort order.
var states = []State{Parked, Starting, Live}

// Orders returns the sorted values of Query.Sort.
func Orders() []string { return slices.Sorted(maps.Keys(orders)) }

// Validate sets the defaults of a query. Its error names the invalid field.
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

// Page returns the query's page of the watchers. Pages fit together, because the ID breaks ties.
// The query must be valid.
func (q Query) Page(all []Watcher) []Watcher {
	if q.Limit == 0 || q.Offset >= len(all) {
		return nil
	}
	sorted := make([]*Watcher, len(all)) // moving a Watcher costs more than comparing two
	for i := range all {
		sorted[i] = &all[i]
	}
	compare := orders[q.Sort]
	slices.SortFunc(sorted, func(a, b *Watcher) int {
		order := compare(a, b)
		if q.Reverse { // but not the order of equal ones
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

// Counts counts the open watches of a cache. It is not a consistent snapshot while watches begin or
// end.
type Counts struct {
	// Live watches receive each event as it is dispatched. Starting ones receive their initial
	// events, or those since their start. Parked ones were live and catch up.
	Live     int `json:"live"`
	Starting int `json:"starting"`
	Parked   int `json:"parked"`
	// WorstLag is the highest Watcher.Lag, and WorstLagSeconds that watch's LagSeconds.
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

// Watcher describes one watch. /debug/watchcache shows it as JSON, with values in the selectors
// hidden.
type Watcher struct {
	// ID is unique among the watches of a cache until it sleeps.
	ID uint64 `json:"id"`
	// Client sent the request.
	Client
	// Key is the watched key or key prefix. It and the selectors are cut after 1 KiB.
	Key           string `json:"-"`
	LabelSelector string `json:"-"`
	FieldSelector string `json:"-"`
	// State is the state of the watch. Parked is true if it is not live, because it has just begun
	// or its client is slow.
	State  State `json:"state"`
	Parked bool  `json:"-"`
	// Lag is the number of dispatched events not inspected for the watcher, 0 for a live one.
	// LagSeconds is the age of the first of them, or of the oldest event in the window.
	Lag        uint64  `json:"lagEvents"`
	LagSeconds float64 `json:"lagSeconds"`
	// Queued is the number of events not received by the client, at most Capacity.
	Queued   int `json:"queued"`
	Capacity int `json:"capacity"`
	// Delivered is the number of events sent to or queued for the client, with initial events and
	// their end bookmark, without other bookmarks.
	Delivered uint64 `json:"delivered"`
	// HeldBytes estimates the memory of the watch: its channel, the objects of queued events, and
	// the state of its initial events unless that is the current one. Watches that began together
	// share that state, and each counts it.
	HeldBytes int64 `json:"heldBytes"`
	// Started is when the watch began.
	Started time.Time `json:"started"`
}

// Ended describes an ended watch, with the last values of the Watcher.
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

// Client is the sender of a request. Unknown fields are empty.
type Client struct {
	// User is the authenticated user's name, after impersonation.
	User string `json:"user"`
	// UserAgent is a header of the request.
	UserAgent string `json:"userAgent"`
	// Address is the request's remote host and port.
	Address string `json:"address"`
}
