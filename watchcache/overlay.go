// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
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
	elements []*Element // in key order
	// added and deleted are the keys of the events above rv of these types, in order. The
	// trees have as many elements more than the version, and fewer, in every range of keys.
	added, deleted []string

	// byIndex are the elements under each value of an index, in key order, made
	// when the index is first asked for.
	byIndex struct {
		sync.Mutex
		made map[int]map[string][]*Element
	}
}

// elementsFrom returns the elements, which are in key order, whose key is not below key.
func elementsFrom(elements []*Element, key string) []*Element {
	return elements[sort.Search(len(elements), func(i int) bool { return elements[i].Key >= key }):]
}

// countKeys returns how many of the keys, which are in order, begin with prefix and are not
// below from.
func countKeys(keys []string, prefix, from string) int {
	keys = keys[sort.SearchStrings(keys, max(prefix, from)):]
	return sort.Search(len(keys), func(i int) bool { return !strings.HasPrefix(keys[i], prefix) })
}

// get returns the element with the key, nil if there is none.
func (o *overlay) get(key string) *Element {
	if from := elementsFrom(o.elements, key); len(from) > 0 && from[0].Key == key {
		return from[0]
	}
	return nil
}

// indexed returns the elements that the i-th of the indexes has under value.
func (o *overlay) indexed(indexes []Index, i int, value string) []*Element {
	o.byIndex.Lock()
	defer o.byIndex.Unlock()
	made, ok := o.byIndex.made[i]
	if !ok {
		made = byValue(o.elements, indexes[i])
		if o.byIndex.made == nil {
			o.byIndex.made = make(map[int]map[string][]*Element)
		}
		o.byIndex.made[i] = made
	}
	return made[value]
}

func byValue(elements []*Element, index Index) map[string][]*Element {
	byValue := make(map[string][]*Element)
	scratch := make([]string, 0, valuesRoom)
	for _, e := range elements {
		for _, value := range index.Values(e, scratch[:0]) {
			under := byValue[value]
			if last := len(under) - 1; last >= 0 && under[last] == e {
				continue // Values returned the value twice
			}
			byValue[value] = append(under, e)
		}
	}
	return byValue
}

// overlaid merges the rest of an overlay with the elements of a newer tree, which are taken
// in key order.
type overlaid struct {
	older   []*Element
	rv      uint64
	prefix  string
	yield   func(*Element) bool
	stopped bool // yield has returned false
}

// take takes the tree's next element. take reports whether the merge goes on.
func (o *overlaid) take(e *Element) bool {
	if !strings.HasPrefix(e.Key, o.prefix) {
		return false
	}
	for len(o.older) > 0 && o.older[0].Key <= e.Key {
		if !o.next() {
			return false
		}
	}
	if e.RV <= o.rv {
		o.stopped = !o.yield(e)
	}
	return !o.stopped
}

// finish yields the elements of the overlay behind the last element of the tree.
func (o *overlaid) finish() {
	for !o.stopped && len(o.older) > 0 && strings.HasPrefix(o.older[0].Key, o.prefix) {
		o.next()
	}
}

func (o *overlaid) next() bool {
	o.stopped = !o.yield(o.older[0])
	o.older = o.older[1:]
	return !o.stopped
}
