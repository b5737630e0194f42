// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"k8s.io/utils/third_party/forked/golang/btree"
)

// Index says under which values an element is found.
type Index struct {
	// Name identifies the index.
	Name string
	// Values appends the element's values to dst and returns it. It is a pure
	// function of the element. A value that is appended twice counts once.
	Values func(e *Element, dst []string) []string
}

// degree of the B-trees: nodes of up to 31 items. Larger nodes cost more to
// copy on the first write after a snapshot, smaller ones more pointers.
const degree = 16

// item is an element in the primary order.
type item struct {
	key     string
	element *Element
}

// indexItem is an element under one value of one index.
type indexItem struct {
	value, key string
	element    *Element
}

func itemLess(a, b item) bool { return a.key < b.key }

func indexItemLess(a, b indexItem) bool {
	if a.value != b.value {
		return a.value < b.value
	}
	return a.key < b.key
}

// trees hold the elements in key order, and once more for each index in the
// order of (value, key), so that a read by index is ordered and pages too.
type trees struct {
	primary *btree.BTree[item]
	byIndex []*btree.BTree[indexItem] // parallel to the State's indexes
	digest  *Digest                   // of what primary holds
}

func newTrees(indexes int) trees {
	t := trees{
		primary: btree.New(degree, itemLess),
		byIndex: make([]*btree.BTree[indexItem], indexes),
		digest:  new(Digest),
	}
	for i := range t.byIndex {
		t.byIndex[i] = btree.New(degree, indexItemLess)
	}
	return t
}

// clone shares all nodes with t; whoever writes first copies what it touches.
// It writes to t's own bookkeeping: one clone of the same trees at a time.
func (t trees) clone() trees {
	c := trees{
		primary: t.primary.Clone(),
		byIndex: make([]*btree.BTree[indexItem], len(t.byIndex)),
		digest:  new(*t.digest),
	}
	for i := range t.byIndex {
		c.byIndex[i] = t.byIndex[i].Clone()
	}
	return c
}

// valuesRoom is for how many values of one element an index needs no memory.
const valuesRoom = 8

// set replaces previous (nil: none) by e (nil: none) under the same key. Index
// values are gathered in scratch.
func (t trees) set(indexes []Index, e, previous *Element, scratch []string) {
	if previous != nil {
		t.digest.Toggle(previous.Key, previous.RV)
	}
	if e == nil {
		t.primary.Delete(item{key: previous.Key})
	} else {
		t.primary.ReplaceOrInsert(item{key: e.Key, element: e})
		t.digest.Toggle(e.Key, e.RV)
	}
	for i, tree := range t.byIndex {
		if previous != nil {
			for _, value := range indexes[i].Values(previous, scratch[:0]) {
				tree.Delete(indexItem{value: value, key: previous.Key})
			}
		}
		if e != nil {
			for _, value := range indexes[i].Values(e, scratch[:0]) {
				tree.ReplaceOrInsert(indexItem{value: value, key: e.Key, element: e})
			}
		}
	}
}
