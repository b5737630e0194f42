// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"slices"

	"k8s.io/utils/third_party/forked/golang/btree"
)

// Index defines the values under which an element is found.
type Index struct {
	// Name identifies the index.
	Name string
	// Values appends the element's values to dst and returns dst. Values must be a
	// pure function of the element. A value that is appended twice counts once.
	Values func(e *Element, dst []string) []string
}

// degree of the B-trees: nodes have up to 31 items. Larger nodes cost more to
// copy on the first write after a snapshot, smaller nodes need more pointers.
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

// Estimates, in bytes, of a tree's memory for one entry, with the spare room of its
// nodes: between a tree that was filled from a list, whose nodes are
// full, and one whose entries came in any order. Nodes are half empty, and the
// estimate is two thirds of the truth, if all entries came in the order of keys.
const (
	bytesPerItem      = 36
	bytesPerIndexItem = 56
)

// bytes estimates the memory of the trees, without the strings.
func (t trees) bytes() int64 {
	n := int64(t.primary.Len()) * bytesPerItem
	for _, index := range t.byIndex {
		n += int64(index.Len()) * bytesPerIndexItem
	}
	return n
}

// clone shares all nodes with t; the first write to either tree copies the
// nodes that it changes. Cloning also writes to t's own bookkeeping, so only
// the trees that the state's lock guards are cloned, never published ones.
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

// valuesRoom is how many values an element may have in an index before reading
// them allocates.
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

// outcome makes the event's outcome the current state of its key, and returns
// the number of bytes by which the elements have grown, which may be negative.
func (t trees) outcome(indexes []Index, e *Event, scratch []string) (bytes int64) {
	after := e.Element
	if e.Type == Deleted {
		after = nil
	}
	if e.Previous != nil {
		e.Previous.checkSeal()
		bytes -= e.Previous.bytes()
	}
	if after != nil {
		bytes += after.bytes()
	}
	t.set(indexes, after, e.Previous, scratch)
	return bytes
}

// built is what elements make up.
type built struct {
	trees trees
	bytes int64 // of the elements
	// duplicates is the number of elements that were left out because another one
	// has the same key.
	duplicates int
}

// build makes the trees of elements, which are sealed. Of two elements with the same
// key the one with the higher RV stays, of equal ones the last.
//
// Lists come in the order of their keys. Filled from the end, the trees take half
// the memory: nodes are split where they have no room to spare.
func build(indexes []Index, elements []*Element) built {
	b := built{trees: newTrees(len(indexes))}
	scratch := make([]string, 0, valuesRoom)
	distinct := ascending(elements)
	for _, e := range slices.Backward(elements) {
		var previous *Element
		if !distinct {
			found, exists := b.trees.primary.Get(item{key: e.Key})
			if exists {
				b.duplicates++
				if found.element.RV >= e.RV {
					continue
				}
				b.bytes -= found.element.bytes()
			}
			previous = found.element
		}
		e.seal()
		b.trees.set(indexes, e, previous, scratch)
		b.bytes += e.bytes()
	}
	return b
}

// ascending reports whether each element's key is above the one before, so that no
// two are the same.
func ascending(elements []*Element) bool {
	for i := 1; i < len(elements); i++ {
		if elements[i-1].Key >= elements[i].Key {
			return false
		}
	}
	return true
}

// Digest stands for a set of keys, each with the resourceVersion of its last
// write. Two sets with equal digests are taken to be equal. The zero value is
// the digest of the empty set.
type Digest uint64

// Toggle adds the key at rv to the set, or removes it if the set has it. The
// order in which keys are added and removed does not matter.
func (d *Digest) Toggle(key string, rv uint64) {
	// FNV-1a, finished so that all bits of rv reach all bits of the sum: keys
	// differ little from each other, and versions even less.
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	h ^= rv * 0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	*d ^= Digest(h ^ h>>31)
}
