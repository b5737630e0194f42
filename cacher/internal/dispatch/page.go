// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"container/heap"
	"slices"
	"strings"

	"github.com/kube-watchcache/watchcache/cacher/status"
)

// orders are those of status.Orders in which watchers may be sorted: the greatest numbers come first,
// the oldest watchers, and names by their bytes.
var orders = map[string]order{
	"lag": {channels: true, compare: func(a, b *row) int {
		return cmp.Or(cmp.Compare(b.lag, a.lag), cmp.Compare(b.queued, a.queued))
	}},
	"queued":    {channels: true, compare: func(a, b *row) int { return cmp.Compare(b.queued, a.queued) }},
	"bytes":     {channels: true, compare: func(a, b *row) int { return cmp.Compare(b.bytes, a.bytes) }},
	"delivered": {compare: func(a, b *row) int { return cmp.Compare(b.delivered, a.delivered) }},
	"age":       {compare: func(a, b *row) int { return cmp.Compare(a.watcher.began, b.watcher.began) }},
	"state":     {compare: func(a, b *row) int { return cmp.Compare(b.phase, a.phase) }},
	"user":      byName(func(c status.Client) string { return c.User }),
	"userAgent": byName(func(c status.Client) string { return c.UserAgent }),
	"address":   byName(func(c status.Client) string { return c.Address }),
}

type order struct {
	compare func(a, b *row) int
	// channels: the order depends on the watchers' channels.
	channels bool
}

func byName(name func(status.Client) string) order {
	return order{compare: func(a, b *row) int {
		return strings.Compare(name(a.watcher.client.Value()), name(b.watcher.client.Value()))
	}}
}

// pageOf returns the indexes of the rows of a page, in order. No two watchers are
// equal, so pages fit together. Only the rows up to the end of the page are sorted.
func pageOf(rows []row, p status.Query) []int {
	if p.Limit == 0 || p.Offset >= len(rows) {
		return nil
	}
	end := len(rows)
	if p.Limit > 0 && p.Limit < end-p.Offset {
		end = p.Offset + p.Limit
	}
	compare := orders[p.Sort].compare
	f := &firstRows{indexes: make([]int, end), compare: func(i, j int) int {
		order := compare(&rows[i], &rows[j])
		if p.Reverse { // which does not reverse equal rows
			order = -order
		}
		return cmp.Or(order, cmp.Compare(rows[i].id, rows[j].id))
	}}
	for i := range rows {
		switch {
		case i < end:
			f.indexes[i] = i
		case i == end:
			heap.Init(f)
			fallthrough
		default:
			if f.compare(i, f.indexes[0]) < 0 {
				f.indexes[0] = i
				heap.Fix(f, 0)
			}
		}
	}
	slices.SortFunc(f.indexes, f.compare)
	return f.indexes[p.Offset:]
}

// firstRows is a heap of the rows that come first, with the last of them on top. It keeps
// its size.
type firstRows struct {
	indexes []int
	compare func(i, j int) int
}

func (f *firstRows) Len() int           { return len(f.indexes) }
func (f *firstRows) Less(i, j int) bool { return f.compare(f.indexes[i], f.indexes[j]) > 0 }
func (f *firstRows) Swap(i, j int)      { f.indexes[i], f.indexes[j] = f.indexes[j], f.indexes[i] }
func (f *firstRows) Push(any)           { panic("dispatch: a heap of rows does not grow") }
func (f *firstRows) Pop() any           { panic("dispatch: a heap of rows does not shrink") }
