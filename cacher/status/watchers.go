// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
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

// Orders returns the names of the orders that watchers can be sorted by.
func Orders() []string {
	return []string{"address", "age", "bytes", "delivered", "lag", "queued", "state", "user", "userAgent"}
}

// defaultOrder is the one of Orders that an empty Sort means.
const defaultOrder = "lag"

// Validate sets the defaults of a query. The error names the field that is invalid.
func (q *Query) Validate() error {
	if q.Sort == "" {
		q.Sort = defaultOrder
	}
	switch {
	case !slices.Contains(Orders(), q.Sort):
		return fmt.Errorf("Sort is %q, which is none of %s", q.Sort, strings.Join(Orders(), ", "))
	case q.Offset < 0:
		return fmt.Errorf("Offset is %d and must not be negative", q.Offset)
	}
	return nil
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
	// FieldSelector select objects there.
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
