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

// Counts counts the open watches of a cache. While watches come and go the
// numbers are of slightly different times.
type Counts struct {
	// Live watches are sent each event as it is dispatched. Starting ones are sent
	// their initial events, or those since their start. Parked ones have been live
	// and catch up.
	Live     int
	Starting int
	Parked   int
	// WorstLag is the greatest Watcher.Lag, and WorstLagSeconds the
	// LagSeconds of that watch.
	WorstLag        uint64
	WorstLagSeconds float64
}

// State is the state of a watch.
type State string

// The states; see Counts.
const (
	Live     State = "live"
	Starting State = "starting"
	Parked   State = "parked"
)

// Watcher describes one watch.
type Watcher struct {
	// ID identifies a watch of the cache.
	ID uint64
	// Client is whose watch it is.
	Client Client
	// Key is the key or key prefix that is watched, LabelSelector and
	// FieldSelector select objects there: the first KiB of each.
	Key           string
	LabelSelector string
	FieldSelector string
	// State is the state of the watch. Parked: the watch is not live, because it has
	// just begun or its client is slow. It catches up from its position instead of
	// receiving events as they come.
	State  State
	Parked bool
	// Lag is how many of the dispatched events the watcher has not looked at yet;
	// 0 for a live watcher. LagSeconds is how long ago the cache got the first of
	// them, or, if that one has left the window, the oldest one in the window.
	Lag        uint64
	LagSeconds float64
	// Queued is how many events the client has not taken yet, of at most Capacity.
	Queued   int
	Capacity int
	// Delivered is how many events the client was sent, or has to take, initial
	// events and the bookmark at their end included, other bookmarks not.
	Delivered uint64
	// HeldBytes estimates the memory that is there for the watch: its channel, the
	// objects of the events in it, and the state that its initial events come
	// from, as far as it is not the current one. Watches that have begun at the
	// same time share that state, and each counts it.
	HeldBytes int64
	// Started is when the watch began.
	Started time.Time
}

// Ended describes a watch that has ended. The fields are those of
// Watcher, at the end.
type Ended struct {
	ID            uint64
	Client        Client
	Key           string
	LabelSelector string
	FieldSelector string
	// Reason is one of the values of the label reason of the metric
	// watchcache_watchers_ended_total.
	Reason    string
	Started   time.Time
	Ended     time.Time
	Delivered uint64
	Lag       uint64
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
