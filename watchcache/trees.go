// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"cmp"
	"hash/maphash"
	"math/bits"
	"slices"
	"strings"
)

// Index defines the values by which an element can be found.
type Index struct {
	// Name identifies the index.
	Name string
	// Values appends the element's values to dst. It must be a pure function of the element. A
	// value appended twice counts once.
	Values func(e *Element, dst []string) []string
}

// trees holds the elements in key order, and in the order of each index.
type trees struct {
	primary *btree
	indexes []Index  // immutable
	byIndex []*btree // parallel to indexes
	digest  *Digest  // of the elements in primary
}

// index returns the position of the named index in indexes, -1 if there is none.
func (t trees) index(name string) int {
	return slices.IndexFunc(t.indexes, func(i Index) bool { return i.Name == name })
}

// bytes estimates the memory of the trees in bytes, without keys and values.
func (t trees) bytes() int64 {
	bytes := t.primary.bytes()
	for _, index := range t.byIndex {
		bytes += index.bytes()
	}
	return bytes
}

// clone shares all nodes with t. A write to t copies the nodes that it changes. Do not clone
// published trees: clone also writes to t.
func (t trees) clone() trees {
	c := trees{primary: t.primary.clone(), indexes: t.indexes, byIndex: make([]*btree, len(t.byIndex)), digest: new(*t.digest)}
	for i := range t.byIndex {
		c.byIndex[i] = t.byIndex[i].clone()
	}
	return c
}

// valuesRoom is the number of index values of one element read without an allocation.
const valuesRoom = 8

// seed is the seed of hashOf.
var seed = maphash.MakeSeed()

// hashOf returns the hash by which indexes order values. Values with equal hashes share their
// elements; with 64 bits this is not expected to happen.
func hashOf(value string) uint64 { return maphash.String(seed, value) }

// apply makes the event's outcome the current state of its key, and returns the growth of the
// elements in bytes. scratch is a buffer for index values.
func (t trees) apply(e *Event, scratch []string) (bytes int64) {
	previous, after := e.Previous, e.after()
	if previous != nil {
		previous.checkSeal()
		bytes -= previous.bytes()
		t.digest.Toggle(previous.Key, previous.RV)
	}
	if after == nil {
		t.primary.remove(0, previous.Key)
	} else {
		bytes += after.bytes()
		t.primary.set(entry{element: after})
		t.digest.Toggle(after.Key, after.RV)
	}
	for i, tree := range t.byIndex {
		t.indexes[i].move(tree, e, scratch)
	}
	return bytes
}

// move updates the index's tree by one event.
func (i *Index) move(tree *btree, e *Event, scratch []string) {
	values := scratch[:0]
	if after := e.after(); after != nil {
		values = i.Values(after, values)
		for _, value := range values {
			tree.set(entry{hashOf(value), after})
		}
	}
	if e.Previous != nil {
		for _, value := range i.Values(e.Previous, values)[len(values):] {
			if !slices.Contains(values, value) {
				tree.remove(hashOf(value), e.Previous.Key)
			}
		}
	}
}

// after returns the element of the event's key after the event, nil for a deletion.
func (e *Event) after() *Element {
	if e.Type == Deleted {
		return nil
	}
	return e.Element
}

// build returns the trees of elements and the elements' size in bytes. It seals the elements, and
// keeps one of those with equal keys; see distinctOf.
func build(indexes []Index, elements []*Element) (t trees, bytes int64) {
	t = trees{indexes: indexes, digest: new(Digest)}
	elements = distinctOf(elements)
	all := make([]entry, len(elements))
	for i, e := range elements {
		e.seal()
		all[i].element = e
		t.digest.Toggle(e.Key, e.RV)
		bytes += e.bytes()
	}
	t.primary = newBtree(all)
	for _, index := range indexes {
		t.byIndex = append(t.byIndex, index.build(elements))
	}
	return t, bytes
}

// build returns the index's tree of elements, which are in key order.
func (i *Index) build(elements []*Element) *btree {
	all := make([]entry, 0, len(elements))
	scratch := make([]string, 0, valuesRoom)
	for _, e := range elements {
		for _, value := range i.Values(e, scratch[:0]) {
			all = append(all, entry{hashOf(value), e})
		}
	}
	return newBtree(slices.Compact(sortedByHash(all)))
}

// sortedByHash returns entries in the order of their hashes. It is stable. Hashes are evenly
// distributed, so with as many buckets as entries few buckets need sorting.
func sortedByHash(entries []entry) []entry {
	shift := 64 - bits.Len(uint(len(entries)))
	ends := make([]int, len(entries)*2+1) // of the buckets, of which there are at most twice as many as entries
	for _, e := range entries {
		ends[e.hash>>shift+1]++
	}
	for i := 1; i < len(ends); i++ {
		ends[i] += ends[i-1]
	}
	sorted := make([]entry, len(entries))
	for _, e := range entries {
		sorted[ends[e.hash>>shift]] = e
		ends[e.hash>>shift]++
	}
	byHash := func(a, b entry) int { return cmp.Compare(a.hash, b.hash) }
	for from := 0; from < len(sorted); {
		to := ends[sorted[from].hash>>shift]
		if bucket := sorted[from:to]; !slices.IsSortedFunc(bucket, byHash) {
			slices.SortStableFunc(bucket, byHash)
		}
		from = to
	}
	return sorted
}

// distinctOf returns elements in key order. Of those with equal keys it keeps the one with the
// highest RV, and the last one of those with equal RVs.
func distinctOf(elements []*Element) []*Element {
	ascending := true
	for i := 1; i < len(elements) && ascending; i++ {
		ascending = elements[i-1].Key < elements[i].Key
	}
	if ascending {
		return elements
	}
	elements = slices.SortedStableFunc(slices.Values(elements), byKey)
	distinct := elements[:0]
	for _, e := range elements {
		last := len(distinct) - 1
		switch {
		case last < 0 || distinct[last].Key != e.Key:
			distinct = append(distinct, e)
		case distinct[last].RV <= e.RV:
			distinct[last] = e
		}
	}
	return distinct
}

func byKey(a, b *Element) int { return strings.Compare(a.Key, b.Key) }

// Digest identifies a set of keys, each with the resourceVersion of its last write. Sets with
// equal digests are treated as equal. The zero Digest is the digest of the empty set.
type Digest uint64

// Toggle adds the key at rv to the set, or removes it if it is in the set. The order of calls has
// no effect.
func (d *Digest) Toggle(key string, rv uint64) {
	// FNV-1a with a finalizer that spreads all bits of rv: keys differ little from each other,
	// and versions even less.
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	h ^= rv * 0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	*d ^= Digest(h ^ h>>31)
}
