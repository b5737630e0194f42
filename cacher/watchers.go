// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/kube-watchcache/watchcache/cacher/internal/dispatch"
)

// WatcherQuery is which watchers StatusPage describes. The zero value is none of
// them.
type WatcherQuery struct {
	// Sort is one of WatcherOrders; empty: lag. The greatest number, the oldest watch or
	// the first name of the alphabet comes first. Reverse reverses the order.
	Sort    string
	Reverse bool
	// The page begins after Offset watchers and has at most Limit of them; all if
	// Limit is negative.
	Offset, Limit int
}

// WatcherOrders returns the names of the orders that watchers can be sorted by.
func WatcherOrders() []string { return dispatch.Orders() }

// defaultOrder is the one of WatcherOrders that an empty Sort means.
const defaultOrder = "lag"

func (q *WatcherQuery) validate() error {
	if q.Sort == "" {
		q.Sort = defaultOrder
	}
	switch {
	case q.Sort != defaultOrder && !slices.Contains(WatcherOrders(), q.Sort):
		return fmt.Errorf("Sort is %q, which is none of %s", q.Sort, strings.Join(WatcherOrders(), ", "))
	case q.Offset < 0:
		return fmt.Errorf("Offset is %d and must not be negative", q.Offset)
	}
	return nil
}

// WatchCounts counts the open watches of a cache. While watches come and go the
// numbers are of slightly different times.
type WatchCounts struct {
	// Live watches are sent each event as it is dispatched. Starting ones are sent
	// their initial events, or those since their start. Parked ones have been live
	// and catch up.
	Live     int `json:"live"`
	Starting int `json:"starting"`
	Parked   int `json:"parked"`
	// WorstLag is the greatest WatcherStatus.Lag, and WorstLagSeconds the
	// LagSeconds of that watch.
	WorstLag        uint64  `json:"worstLag"`
	WorstLagSeconds float64 `json:"worstLagSeconds"`
}

// WatcherState is the state of a watch.
type WatcherState string

// The states; see WatchCounts.
const (
	WatcherLive     WatcherState = "live"
	WatcherStarting WatcherState = "starting"
	WatcherParked   WatcherState = "parked"
)

// WatcherStatus describes one watch.
type WatcherStatus struct {
	// ID identifies a watch of the cache.
	ID uint64 `json:"id"`
	// Client is whose watch it is.
	Client Client `json:"client"`
	// Key is the key or key prefix that is watched, LabelSelector and
	// FieldSelector select objects there.
	Key           string `json:"key"`
	LabelSelector string `json:"labelSelector,omitempty"`
	FieldSelector string `json:"fieldSelector,omitempty"`
	// State is the state of the watch. Parked: the watch is not live, because it has
	// just begun or its client is slow. It catches up from its position instead of
	// receiving events as they come.
	State  WatcherState `json:"state"`
	Parked bool         `json:"parked"`
	// Lag is how many of the dispatched events the watcher has not looked at yet;
	// 0 for a live watcher. LagSeconds is how long ago the cache got the first of
	// them, or, if that one has left the window, the oldest one in the window.
	Lag        uint64  `json:"lag"`
	LagSeconds float64 `json:"lagSeconds"`
	// Queued is how many events the client has not taken yet, of at most Capacity.
	Queued   int `json:"queued"`
	Capacity int `json:"capacity"`
	// Delivered is how many events the client was sent, or has to take, initial
	// events and the bookmark at their end included, other bookmarks not.
	Delivered uint64 `json:"delivered"`
	// HeldBytes estimates the memory that is there for the watch: its channel, the
	// objects of the events in it, and the state that its initial events come
	// from, as far as it is not the current one. Watches that have begun at the
	// same time share that state, and each counts it.
	HeldBytes int64 `json:"heldBytes"`
	// Started is when the watch began.
	Started time.Time `json:"started"`
}

// EndedWatch describes a watch that has ended. The fields are those of
// WatcherStatus, at the end.
type EndedWatch struct {
	ID            uint64 `json:"id"`
	Client        Client `json:"client"`
	Key           string `json:"key"`
	LabelSelector string `json:"labelSelector,omitempty"`
	FieldSelector string `json:"fieldSelector,omitempty"`
	// Reason is one of the values of the label reason of the metric
	// watchcache_watchers_ended_total.
	Reason    string    `json:"reason"`
	Started   time.Time `json:"started"`
	Ended     time.Time `json:"ended"`
	Delivered uint64    `json:"delivered"`
	Lag       uint64    `json:"lag"`
}

var watcherStates = [...]WatcherState{
	dispatch.Live: WatcherLive, dispatch.Starting: WatcherStarting, dispatch.Parked: WatcherParked,
}

func (e *engine) watchers(q WatcherQuery) ([]WatcherStatus, WatchCounts) {
	page, counts := e.fanout.Watches(dispatch.Page(q))
	out := make([]WatcherStatus, len(page))
	for i, w := range page {
		out[i] = WatcherStatus{
			ID: w.ID, Client: Client(w.Client),
			Key: w.Name.Key, LabelSelector: w.Name.Label, FieldSelector: w.Name.Field,
			State: watcherStates[w.Phase], Parked: w.Phase != dispatch.Live, Lag: w.Lag, LagSeconds: w.LagTime.Seconds(),
			Queued: w.Queued, Capacity: w.Capacity, Delivered: w.Delivered, HeldBytes: w.Bytes, Started: w.Started,
		}
	}
	return out, WatchCounts{
		Live: counts.Live, Starting: counts.Starting, Parked: counts.Parked,
		WorstLag: counts.WorstLag, WorstLagSeconds: counts.WorstLagTime.Seconds(),
	}
}

func endedWatches(all []dispatch.Ending) []EndedWatch {
	out := make([]EndedWatch, len(all))
	for i, w := range all {
		out[i] = EndedWatch{
			ID: w.ID, Client: Client(w.Client), Key: w.Name.Key, LabelSelector: w.Name.Label, FieldSelector: w.Name.Field,
			Reason: w.Reason.String(), Started: w.Started, Ended: w.Ended, Delivered: w.Delivered, Lag: w.Lag,
		}
	}
	return out
}

// Client is who sent a request, as far as it is known. Each field may be empty.
type Client struct {
	// User is the name of the authenticated user, after impersonation.
	User string `json:"user,omitempty"`
	// UserAgent is the header of the request.
	UserAgent string `json:"userAgent,omitempty"`
	// Address is the host and port that the request came from.
	Address string `json:"address,omitempty"`
}

type clientKey struct{}

// WithClient returns a context whose watches Status shows as those of the
// client, in full. Without it, Status shows the user that the context has for an
// API server's registry, and no more. server.Install gives each watch of a server
// its client.
func WithClient(ctx context.Context, client Client) context.Context {
	return context.WithValue(ctx, clientKey{}, client)
}

// clientOf returns whose request a context is.
func clientOf(ctx context.Context) dispatch.Client {
	if client, ok := ctx.Value(clientKey{}).(Client); ok {
		return dispatch.Client(client)
	}
	if user, ok := apirequest.UserFrom(ctx); ok && user != nil {
		return dispatch.Client{User: user.GetName()}
	}
	return dispatch.Client{}
}
