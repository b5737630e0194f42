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

// indexed returns the elements that the i-th of the indexes has under value, and for -1 all.
func (o *overlay) indexed(indexes []Index, i int, value string) []*Element {
	if i < 0 {
		return o.elements
	}
	o.byIndex.Lock()
	defer o.byIndex.Unlock()
	made, ok := o.byIndex.made[i]
	if ok {
		return made[value]
	}
	made = make(map[string][]*Element)
	scratch := make([]string, 0, valuesRoom)
	for _, e := range o.elements {
		for _, value := range indexes[i].Values(e, scratch[:0]) {
			// Values may return a value twice.
			if under := made[value]; len(under) == 0 || under[len(under)-1] != e {
				made[value] = append(under, e)
			}
		}
	}
	if o.byIndex.made == nil {
		o.byIndex.made = make(map[int]map[string][]*Element)
	}
	o.byIndex.made[i] = made
	return made[value]
}
