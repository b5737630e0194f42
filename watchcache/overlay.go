// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"cmp"
	"slices"
	"sort"
	"strings"
	"sync"
)

// overlay turns newer trees into an older version, without a write to any tree.
// The elements at rv were
//
//   - the elements of the trees whose RV is at or below rv: they have not
//     changed since, and
//   - of the events above rv, each Previous whose RV is at or below rv. Only
//     the first event of a key above rv has such a Previous: the elements that
//     later events replace were written after rv.
//
// No key is in both, so that a read merges the two in key order.
type overlay struct {
	items  []item // in key order
	length int    // of the whole version

	// byIndex are the items under each value of an index, in key order, made
	// when the index is first asked for.
	byIndex struct {
		sync.Mutex
		made map[int]map[string][]item
	}
}

// from returns the items whose key is not below key.
func (o *overlay) from(key string) []item { return itemsFrom(o.items, key) }

func itemsFrom(items []item, key string) []item {
	return items[sort.Search(len(items), func(i int) bool { return items[i].key >= key }):]
}

// get returns the element with the key, nil if the overlay has none.
func (o *overlay) get(key string) *Element {
	if items := o.from(key); len(items) > 0 && items[0].key == key {
		return items[0].element
	}
	return nil
}

// indexed returns the items that the i-th of the indexes has under value, from
// key on. An index function that panics leaves nothing behind.
func (o *overlay) indexed(indexes []Index, i int, value, key string) []item {
	o.byIndex.Lock()
	defer o.byIndex.Unlock()
	made, ok := o.byIndex.made[i]
	if !ok {
		made = itemsByValue(o.items, indexes[i])
		if o.byIndex.made == nil {
			o.byIndex.made = make(map[int]map[string][]item)
		}
		o.byIndex.made[i] = made
	}
	return itemsFrom(made[value], key)
}

func itemsByValue(items []item, index Index) map[string][]item {
	byValue := make(map[string][]item)
	scratch := make([]string, 0, valuesRoom)
	for _, i := range items {
		for _, value := range index.Values(i.element, scratch[:0]) {
			under := byValue[value]
			if last := len(under) - 1; last >= 0 && under[last].key == i.key {
				continue // Values returned the value twice
			}
			byValue[value] = append(under, i)
		}
	}
	return byValue
}

// sortItems sorts items by key, in steps of a few thousand comparisons between
// which stopped is called. The result is false if stopped returned true.
func sortItems(items []item, stopped func() bool) ([]item, bool) {
	for rest := items; len(rest) > 0; {
		chunk := rest[:min(len(rest), overlayBatch)]
		slices.SortFunc(chunk, func(a, b item) int { return cmp.Compare(a.key, b.key) })
		rest = rest[len(chunk):]
		if stopped() {
			return nil, false
		}
	}
	other := make([]item, len(items))
	for width := overlayBatch; width < len(items); width *= 2 {
		for start := 0; start < len(items); start += 2 * width {
			middle, end := min(start+width, len(items)), min(start+2*width, len(items))
			mergeItems(other[start:end], items[start:middle], items[middle:end])
			if stopped() {
				return nil, false
			}
		}
		items, other = other, items
	}
	return items, true
}

// mergeItems merges two sorted slices into one that has room for exactly both.
func mergeItems(into, a, b []item) {
	for i := range into {
		if len(b) == 0 || (len(a) > 0 && a[0].key <= b[0].key) {
			into[i], a = a[0], a[1:]
		} else {
			into[i], b = b[0], b[1:]
		}
	}
}

// overlaid merges the rest of an overlay with the elements of a newer tree,
// which are taken in key order. yield gets the elements at rv under the prefix.
type overlaid struct {
	older   []item
	rv      uint64
	prefix  string
	yield   func(*Element) bool
	stopped bool // yield has returned false
}

// take takes the tree's next element. take reports whether the merge goes on.
func (o *overlaid) take(key string, e *Element) bool {
	if !strings.HasPrefix(key, o.prefix) {
		return false
	}
	for len(o.older) > 0 && o.older[0].key <= key {
		if !o.next() {
			return false
		}
	}
	if e.RV <= o.rv {
		o.stopped = !o.yield(e)
	}
	return !o.stopped
}

// finish yields the items of the overlay behind the last element of the tree.
func (o *overlaid) finish() {
	for !o.stopped && len(o.older) > 0 && strings.HasPrefix(o.older[0].key, o.prefix) {
		o.next()
	}
}

func (o *overlaid) next() bool {
	o.stopped = !o.yield(o.older[0].element)
	o.older = o.older[1:]
	return !o.stopped
}
