// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"slices"
	"strings"

	"github.com/kube-watchcache/watchcache/cacher/status"
)

// orders are those of status.Orders in which watchers may be sorted: the greatest numbers come first,
// the oldest watchers, and names by their bytes.
var orders = map[string]func(a, b *status.Watcher) int{
	"lag": func(a, b *status.Watcher) int {
		return cmp.Or(cmp.Compare(b.Lag, a.Lag), cmp.Compare(b.Queued, a.Queued))
	},
	"queued":    func(a, b *status.Watcher) int { return cmp.Compare(b.Queued, a.Queued) },
	"bytes":     func(a, b *status.Watcher) int { return cmp.Compare(b.HeldBytes, a.HeldBytes) },
	"delivered": func(a, b *status.Watcher) int { return cmp.Compare(b.Delivered, a.Delivered) },
	"age":       func(a, b *status.Watcher) int { return a.Started.Compare(b.Started) },
	"state": func(a, b *status.Watcher) int {
		return cmp.Compare(slices.Index(states, a.State), slices.Index(states, b.State))
	},
	"user":      func(a, b *status.Watcher) int { return strings.Compare(a.Client.User, b.Client.User) },
	"userAgent": func(a, b *status.Watcher) int { return strings.Compare(a.Client.UserAgent, b.Client.UserAgent) },
	"address":   func(a, b *status.Watcher) int { return strings.Compare(a.Client.Address, b.Client.Address) },
}

// states has the states of watches as they are sorted.
var states = []status.State{status.Parked, status.Starting, status.Live}

// pageOf sorts the watchers and returns those of a page. No two are equal, so pages
// fit together.
func pageOf(all []status.Watcher, q status.Query) []status.Watcher {
	if q.Limit == 0 || q.Offset >= len(all) {
		return nil
	}
	sorted := make([]*status.Watcher, len(all)) // to move one costs more than to compare two
	for i := range all {
		sorted[i] = &all[i]
	}
	compare := orders[q.Sort]
	slices.SortFunc(sorted, func(a, b *status.Watcher) int {
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
	page := make([]status.Watcher, len(sorted))
	for i, w := range sorted {
		page[i] = *w
	}
	return page
}
