// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"cmp"
	"slices"
	"strings"
)

// maxEntries is the maximum number of entries of a node. Larger nodes cost more to copy.
const maxEntries = 32

// entry is an element in a btree, ordered by hash and then by key.
type entry struct {
	hash    uint64 // of an index value; 0 in the primary tree
	element *Element
}

func (e entry) compare(hash uint64, key string) int {
	if e.hash != hash {
		return cmp.Compare(e.hash, hash)
	}
	return strings.Compare(e.element.Key, key)
}

// btree is a B+ tree of entries. Clones share their nodes; a write copies each shared node it
// changes.
type btree struct {
	root   *node
	owner  *owner
	length int
}

// owner identifies the only tree that may write to a node. It is not empty because pointers to
// different empty structs may be equal.
type owner struct{ _ byte }

// node is a leaf, or an inner node with the first entry below each of its children.
type node struct {
	owner    *owner
	entries  []entry
	children []*node // nil in a leaf, otherwise parallel to entries
	below    int     // number of entries in its leaves, or in itself
}

// bytesPerEntry is the estimated memory of a tree per entry, in bytes: between a tree with full
// nodes and one filled in random order.
const bytesPerEntry = 22

// bytes estimates the memory of the tree in bytes, without the elements.
func (t *btree) bytes() int64 { return int64(t.length) * bytesPerEntry }

// newBtree returns the tree of entries, which must be in order. Its leaves are full.
func newBtree(entries []entry) *btree {
	t := &btree{owner: new(owner), length: len(entries)}
	level := []*node{t.leaf(entries[:min(len(entries), maxEntries)])}
	for chunk := range slices.Chunk(entries[len(level[0].entries):], maxEntries) {
		level = append(level, t.leaf(chunk))
	}
	for len(level) > 1 {
		var above []*node
		for children := range slices.Chunk(level, maxEntries) {
			above = append(above, t.parent(children...))
		}
		level = above
	}
	t.root = level[0]
	return t
}

func (t *btree) leaf(entries []entry) *node {
	return &node{owner: t.owner, entries: slices.Clone(entries), below: len(entries)}
}

func (t *btree) parent(children ...*node) *node {
	n := &node{owner: t.owner, children: slices.Clone(children), entries: make([]entry, len(children))}
	for i, child := range children {
		n.entries[i] = child.entries[0]
		n.below += child.below
	}
	return n
}

// clone returns a tree that shares all nodes with t. Only t may be written to afterwards.
func (t *btree) clone() *btree {
	c := *t
	t.owner = new(owner)
	return &c
}

// find returns the index of an entry in the node, or the index at which to insert it.
func (n *node) find(hash uint64, key string) (i int, ok bool) {
	low, high := 0, len(n.entries)
	for low < high {
		middle := int(uint(low+high) >> 1)
		order := n.entries[middle].compare(hash, key)
		switch {
		case order < 0:
			low = middle + 1
		case order > 0:
			high = middle
		default:
			return middle, true
		}
	}
	return low, false
}

// child returns the index of the child that may contain the entry.
func (n *node) child(hash uint64, key string) int {
	i, ok := n.find(hash, key)
	if !ok && i > 0 {
		i--
	}
	return i
}

// get returns the element with the hash and key, nil if there is none.
func (t *btree) get(hash uint64, key string) *Element {
	n := t.root
	for n.children != nil {
		n = n.children[n.child(hash, key)]
	}
	if i, ok := n.find(hash, key); ok {
		return n.entries[i].element
	}
	return nil
}

// rank returns the number of entries below the given one.
func (t *btree) rank(hash uint64, key string) (rank int) {
	n := t.root
	for n.children != nil {
		i := n.child(hash, key)
		for _, child := range n.children[:i] {
			rank += child.below
		}
		n = n.children[i]
	}
	i, _ := n.find(hash, key)
	return rank + i
}

// count returns the number of entries with the hash and a key that begins with prefix and is not
// below from. No key contains the byte 0xff, so all keys with the prefix are below prefix+"\xff".
func (t *btree) count(hash uint64, prefix, from string) int {
	return max(0, t.rank(hash, prefix+"\xff")-t.rank(hash, max(prefix, from)))
}

// last returns the element of the last entry, nil if the tree is empty.
func (t *btree) last() *Element {
	n := t.root
	for n.children != nil {
		n = n.children[len(n.children)-1]
	}
	if len(n.entries) == 0 {
		return nil
	}
	return n.entries[len(n.entries)-1].element
}

// under calls yield for the elements with the hash, in key order from the key from on, until yield
// returns false.
func (t *btree) under(hash uint64, from string, yield func(*Element) bool) {
	t.root.under(hash, from, true, yield)
}

// under reports whether to continue with the next node. If bounded is true, the node may contain
// entries below from.
func (n *node) under(hash uint64, from string, bounded bool, yield func(*Element) bool) bool {
	i := 0
	if n.children != nil {
		if bounded {
			i = n.child(hash, from)
		}
		for ; i < len(n.children); i++ {
			if !n.children[i].under(hash, from, bounded, yield) {
				return false
			}
			bounded = false
		}
		return true
	}
	if bounded {
		i, _ = n.find(hash, from)
	}
	for _, e := range n.entries[i:] {
		if e.hash != hash || !yield(e.element) {
			return false
		}
	}
	return true
}

// set inserts an entry, or replaces the one with the same hash and key.
func (t *btree) set(e entry) {
	t.root = t.own(t.root)
	if right := t.insert(t.root, e); right != nil {
		t.root = t.parent(t.root, right)
	}
}

// insert adds an entry below the node. If the node was split, insert returns its right half.
func (t *btree) insert(n *node, e entry) (right *node) {
	length := t.length
	if n.children != nil {
		i := n.child(e.hash, e.element.Key)
		child := t.ownChild(n, i)
		split := t.insert(child, e)
		n.entries[i] = child.entries[0]
		if split != nil {
			n.entries = slices.Insert(n.entries, i+1, split.entries[0])
			n.children = slices.Insert(n.children, i+1, split)
		}
	} else if i, ok := n.find(e.hash, e.element.Key); ok {
		n.entries[i] = e
	} else {
		n.entries = slices.Insert(n.entries, i, e)
		t.length++
	}
	n.below += t.length - length
	half := len(n.entries) / 2
	switch {
	case len(n.entries) <= maxEntries:
		return nil
	case n.children == nil:
		right = t.leaf(n.entries[half:])
	default:
		right = t.parent(n.children[half:]...)
		n.children = slices.Clone(n.children[:half])
	}
	n.entries = slices.Clone(n.entries[:half]) // so that neither half keeps the other's memory
	n.below -= right.below
	return right
}

// remove deletes an entry if it exists.
func (t *btree) remove(hash uint64, key string) {
	t.root = t.own(t.root)
	t.removeFrom(t.root, hash, key)
	for len(t.root.children) == 1 {
		t.root = t.root.children[0]
	}
	if len(t.root.entries) == 0 {
		t.root = t.leaf(nil)
	}
}

func (t *btree) removeFrom(n *node, hash uint64, key string) {
	if n.children == nil {
		if i, ok := n.find(hash, key); ok {
			n.entries = slices.Delete(n.entries, i, i+1)
			n.below--
			t.length--
		}
		return
	}
	i := n.child(hash, key)
	child := t.ownChild(n, i)
	length := t.length
	t.removeFrom(child, hash, key)
	n.below += t.length - length
	if len(child.entries) == 0 {
		n.drop(i)
		return
	}
	n.entries[i] = child.entries[0]
	// Adjacent nodes have more than half of maxEntries together.
	for i = max(i-1, 0); i+1 < len(n.children); i++ {
		right := n.children[i+1]
		if len(n.children[i].entries)+len(right.entries) <= maxEntries/2 {
			left := t.ownChild(n, i)
			left.entries = append(left.entries, right.entries...)
			left.children = append(left.children, right.children...)
			left.below += right.below
			n.drop(i + 1)
			return
		}
	}
}

// drop deletes a child.
func (n *node) drop(i int) {
	n.entries = slices.Delete(n.entries, i, i+1)
	n.children = slices.Delete(n.children, i, i+1)
}

func (t *btree) ownChild(n *node, i int) *node {
	n.children[i] = t.own(n.children[i])
	return n.children[i]
}

// own returns the node if the tree may write to it, otherwise a copy with room for one more entry.
func (t *btree) own(n *node) *node {
	if n.owner == t.owner {
		return n
	}
	c := &node{owner: t.owner, below: n.below, entries: append(make([]entry, 0, len(n.entries)+1), n.entries...)}
	if n.children != nil {
		c.children = append(make([]*node, 0, len(n.children)+1), n.children...)
	}
	return c
}
