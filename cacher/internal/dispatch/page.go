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
var orders = map[string]func(a, b *row) int{
	"lag": func(a, b *row) int {
		return cmp.Or(cmp.Compare(b.lag, a.lag), cmp.Compare(b.queued, a.queued))
	},
	"queued":    func(a, b *row) int { return cmp.Compare(b.queued, a.queued) },
	"bytes":     func(a, b *row) int { return cmp.Compare(b.bytes, a.bytes) },
	"delivered": func(a, b *row) int { return cmp.Compare(b.delivered, a.delivered) },
	"age":       func(a, b *row) int { return cmp.Compare(a.watcher.began, b.watcher.began) },
	"state":     func(a, b *row) int { return cmp.Compare(b.phase, a.phase) },
	"user":      byName(func(c status.Client) string { return c.User }),
	"userAgent": byName(func(c status.Client) string { return c.UserAgent }),
	"address":   byName(func(c status.Client) string { return c.Address }),
}

func byName(name func(status.Client) string) func(a, b *row) int {
	return func(a, b *row) int {
		return strings.Compare(name(a.watcher.client.Value()), name(b.watcher.client.Value()))
	}
}

// pageOf sorts the rows and returns those of a page. No two watchers are equal, so pages
// fit together.
func pageOf(rows []row, p status.Query) []row {
	if p.Limit == 0 || p.Offset >= len(rows) {
		return nil
	}
	compare := orders[p.Sort]
	slices.SortFunc(rows, func(a, b row) int {
		order := compare(&a, &b)
		if p.Reverse { // which does not reverse equal rows
			order = -order
		}
		return cmp.Or(order, cmp.Compare(a.id, b.id))
	})
	rows = rows[p.Offset:]
	if p.Limit > 0 {
		rows = rows[:min(p.Limit, len(rows))]
	}
	return rows
}
