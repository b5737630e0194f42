// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strings"
)

// Page is a part of the watches, in an order.
type Page struct {
	// Sort is one of Orders. Reverse turns the order round.
	Sort    string
	Reverse bool
	// The page begins after Offset watches, and has at most Limit; all if Limit is
	// negative.
	Offset, Limit int
}

// place is a watcher's sort key, copied out of the watcher: comparing two of 100,000
// watchers reads no memory outside of the processor's caches.
type place struct {
	// Places are sorted by first, second, name and id, ascending. No two watchers share
	// an id.
	first, second uint64
	name          string
	id            uint64
	row           int // the index of the row
}

// orders are the orders in which watchers may be sorted. Rows with the greatest numbers
// come first, therefore the complements.
var orders = map[string]order{
	"lag":       {fill: func(p *place, r *row) { p.first, p.second = ^r.lag, ^uint64(r.queued) }, channels: true},
	"queued":    {fill: func(p *place, r *row) { p.first = ^uint64(r.queued) }, channels: true},
	"bytes":     {fill: func(p *place, r *row) { p.first = ^uint64(r.bytes) }, channels: true},
	"delivered": {fill: func(p *place, r *row) { p.first = ^r.delivered }},
	"age":       {fill: func(p *place, r *row) { p.first = uint64(r.watcher.began) }},
	"state":     {fill: func(p *place, r *row) { p.first = ^uint64(r.phase) }},
	"user":      {name: func(r *row) string { return r.watcher.client.Value().User }},
	"userAgent": {name: func(r *row) string { return r.watcher.client.Value().UserAgent }},
	"address":   {name: func(r *row) string { return r.watcher.client.Value().Address }},
}

// order is one of orders, or its reverse. An order is by numbers, which fill sets, or
// by a name.
type order struct {
	fill func(*place, *row)
	name func(*row) string
	// channels: the order depends on the watchers' channels.
	channels bool
	reverse  bool
	// prefix is the beginning of most names.
	prefix string
}

// sampled is how many rows are looked at for the prefix of most names.
const sampled = 32

// begins sets the prefix of most names.
func (o *order) begins(rows []row) {
	if o.name == nil || len(rows) == 0 {
		return
	}
	o.prefix = o.name(&rows[0])
	for i := 0; i < len(rows); i += max(1, len(rows)/sampled) {
		name := o.name(&rows[i])
		same := 0
		for same < min(len(name), len(o.prefix)) && name[same] == o.prefix[same] {
			same++
		}
		o.prefix = o.prefix[:same]
	}
}

// place returns where a row stands.
func (o *order) place(i int, r *row) place {
	p := place{id: r.id, row: i}
	if o.name != nil {
		o.named(&p, o.name(r))
	} else {
		o.fill(&p, r)
	}
	if o.reverse {
		p.first, p.second = ^p.first, ^p.second
	}
	return p
}

// named orders a place by name. Two numbers decide most comparisons without the name:
// whether it stands before, among or after the names with the prefix, and the bytes after
// the prefix.
func (o *order) named(p *place, name string) {
	var start [16]byte
	switch rest, ok := strings.CutPrefix(name, o.prefix); {
	case ok:
		start[0] = 1
		copy(start[1:], rest)
	case name > o.prefix:
		start[0] = 2
		copy(start[1:], name)
	default:
		copy(start[1:], name)
	}
	p.first, p.second, p.name = binary.BigEndian.Uint64(start[:8]), binary.BigEndian.Uint64(start[8:]), name
}

// Orders returns the names of the orders, sorted.
func Orders() []string {
	names := make([]string, 0, len(orders))
	for name := range orders {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// pageOf returns the indexes of the rows of a page, in order. No two watchers are
// equal, so pages fit together. Only the rows of the page are sorted; the others are
// partitioned, in a time linear in the number of rows wherever the page is.
func pageOf(rows []row, p Page) []int {
	if p.Offset >= len(rows) {
		return nil
	}
	end := len(rows)
	if p.Limit >= 0 && p.Limit < end-p.Offset {
		end = p.Offset + p.Limit
	}
	if end == p.Offset {
		return nil
	}
	o := orders[p.Sort]
	o.reverse = p.Reverse
	o.begins(rows)
	places := o.firstOf(rows, end)
	o.partition(places, p.Offset)
	places = places[p.Offset:]
	slices.SortFunc(places, func(a, b place) int {
		switch {
		case a.id == b.id:
			return 0
		case o.before(&a, &b):
			return -1
		}
		return 1
	})
	out := make([]int, len(places))
	for i := range places {
		out[i] = places[i].row
	}
	return out
}

// minPlaces is how many places are collected at least before some are given up.
const minPlaces = 256

// firstOf returns the places of the n first rows, at least one, in no order. At most
// twice as many are kept at a time: once there are that many, half of them are given
// up, and the last of the others bars the way to all rows after it.
func (o *order) firstOf(rows []row, n int) []place {
	kept := make([]place, 0, min(len(rows), max(2*n, minPlaces)))
	var bar place
	barred := false
	for i := range rows {
		p := o.place(i, &rows[i])
		if barred && !o.before(&p, &bar) {
			continue
		}
		if len(kept) == cap(kept) {
			o.partition(kept, n)
			kept = kept[:n]
			bar, barred = o.last(kept), true
			if !o.before(&p, &bar) {
				continue
			}
		}
		kept = append(kept, p)
	}
	o.partition(kept, n)
	return kept[:n]
}

// before reports whether a comes before b.
func (o *order) before(a, b *place) bool {
	if a.first != b.first {
		return a.first < b.first
	}
	return o.thenBefore(a, b)
}

// thenBefore orders places with equal first. Reversing the order does not reverse equal
// places.
func (o *order) thenBefore(a, b *place) bool {
	switch {
	case a.second != b.second:
		return a.second < b.second
	case a.name != b.name:
		return (a.name < b.name) != o.reverse
	}
	return a.id < b.id
}

// last returns the last of some places, which are not none.
func (o *order) last(places []place) place {
	last := &places[0]
	for i := range places {
		if o.before(last, &places[i]) {
			last = &places[i]
		}
	}
	return *last
}

// partition moves the n first places before the others (quickselect). Pivots are random,
// so no order of watchers makes it slow.
func (o *order) partition(places []place, n int) {
	low, high := 0, len(places) // those in [low,high) are still to be divided at n
	for low < n && n < high {
		pivot := o.medianOfThree(places[low:high])
		i, j := low, high-1
		for i <= j {
			for o.before(&places[i], &pivot) {
				i++
			}
			for o.before(&pivot, &places[j]) {
				j--
			}
			if i <= j {
				places[i], places[j] = places[j], places[i]
				i++
				j--
			}
		}
		// [low,j] are at most the pivot, [i,high) at least, and between the two
		// is the pivot, if there is anything.
		switch {
		case n <= j:
			high = j + 1
		case n >= i:
			low = i
		default:
			return
		}
	}
}

// medianOfThree returns the one in the middle of three places at random.
func (o *order) medianOfThree(places []place) place {
	a, b, c := &places[rand.IntN(len(places))], &places[rand.IntN(len(places))], &places[rand.IntN(len(places))]
	if o.before(b, a) {
		a, b = b, a
	}
	if o.before(c, b) {
		b = c
		if o.before(b, a) {
			b = a
		}
	}
	return *b
}
