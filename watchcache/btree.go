// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"cmp"
	"slices"
	"strings"
)

// maxEntries is how many entries a node has at most. Larger nodes cost more to copy.
const maxEntries = 32

// entry is an element's place in a btree: in the order of hashes, and then of keys.
type entry struct {
	hash    uint64 // of an index value; 0 in the tree of all keys
	element *Element
}

func (e entry) compare(hash uint64, key string) int {
	if e.hash != hash {
		return cmp.Compare(e.hash, hash)
	}
	return strings.Compare(e.element.Key, key)
}

// btree is a B+ tree of entries whose nodes are shared with its clones, and copied
// before they are written to.
type btree struct {
	root   *node
	owner  *owner
	length int
}

// owner stands for the one tree that may write to a node. Pointers to structs without a
// field may be equal.
type owner struct{ _ byte }

// node is a leaf, or has the first entry below each of its children.
type node struct {
	owner    *owner
	entries  []entry
	children []*node // nil in a leaf, and otherwise parallel to entries
	below    int     // how many entries its leaves have, or it has itself
}

// bytesPerEntry estimates the memory of a tree for one entry, in bytes: between a tree whose
// nodes are full and one whose entries came in any order.
const bytesPerEntry = 22

// bytes estimates the memory of the tree, without the elements.
func (t *btree) bytes() int64 { return int64(t.length) * bytesPerEntry }

// newBtree returns the tree of entries, which must ascend. Its leaves are full.
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

// clone returns a tree that shares all nodes with t. Only one of the two may be written
// to from then on: t.
func (t *btree) clone() *btree {
	c := *t
	t.owner = new(owner)
	return &c
}

// find returns the place of an entry in the node, or the one where it belongs.
func (n *node) find(hash uint64, key string) (i int, found bool) {
	low, high := 0, len(n.entries)
	for low < high {
		middle := int(uint(low+high) >> 1)
		switch c := n.entries[middle].compare(hash, key); {
		case c < 0:
			low = middle + 1
		case c > 0:
			high = middle
		default:
			return middle, true
		}
	}
	return low, false
}

// child returns the place of the child that the entry is below, if it is in the tree.
func (n *node) child(hash uint64, key string) int {
	i, found := n.find(hash, key)
	if !found && i > 0 {
		i--
	}
	return i
}

// get returns the element of an entry, nil if there is none.
func (t *btree) get(hash uint64, key string) *Element {
	n := t.root
	for n.children != nil {
		n = n.children[n.child(hash, key)]
	}
	if i, found := n.find(hash, key); found {
		return n.entries[i].element
	}
	return nil
}

// rank returns how many entries are below the given one.
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

// count returns how many entries with the hash have a key that begins with the prefix and is
// not below from. No key has a byte of 0xff, so all that begin with the prefix are below it
// with that byte.
func (t *btree) count(hash uint64, prefix, from string) int {
	return max(0, t.rank(hash, prefix+"\xff")-t.rank(hash, max(prefix, from)))
}

// last returns the element of the last entry, nil if there is none.
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

// under calls yield for the elements with the hash, from the key on, until yield returns
// false.
func (t *btree) under(hash uint64, from string, yield func(*Element) bool) {
	t.root.under(hash, from, true, yield)
}

// under reports whether the next node must be looked at. below: entries of the node may be
// below the key.
func (n *node) under(hash uint64, from string, below bool, yield func(*Element) bool) bool {
	if n.children != nil {
		i := 0
		if below {
			i = n.child(hash, from)
		}
		for ; i < len(n.children); i++ {
			if !n.children[i].under(hash, from, below, yield) {
				return false
			}
			below = false
		}
		return true
	}
	i := 0
	if below {
		i, _ = n.find(hash, from)
	}
	for _, e := range n.entries[i:] {
		if e.hash != hash || !yield(e.element) {
			return false
		}
	}
	return true
}

// set puts an entry into the tree, in place of the one with the same hash and key.
func (t *btree) set(e entry) {
	t.root = t.own(t.root)
	if right := t.insert(t.root, e); right != nil {
		t.root = t.parent(t.root, right)
	}
}

// insert puts an entry below a node, and returns the right half of a node that was split.
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
	} else if i, found := n.find(e.hash, e.element.Key); found {
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
	n.entries = slices.Clone(n.entries[:half]) // neither half keeps the other's memory
	n.below -= right.below
	return right
}

// remove takes an entry out of the tree, if it is there.
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
		if i, found := n.find(hash, key); found {
			n.entries = slices.Delete(n.entries, i, i+1)
			n.below--
			t.length--
		}
		return
	}
	i := n.child(hash, key)
	child, length := t.ownChild(n, i), t.length
	t.removeFrom(child, hash, key)
	n.below += t.length - length
	if len(child.entries) == 0 {
		n.drop(i)
		return
	}
	n.entries[i] = child.entries[0]
	// Nodes beside each other have more than half of maxEntries together.
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

// drop removes a child.
func (n *node) drop(i int) {
	n.entries = slices.Delete(n.entries, i, i+1)
	n.children = slices.Delete(n.children, i, i+1)
}

func (t *btree) ownChild(n *node, i int) *node {
	n.children[i] = t.own(n.children[i])
	return n.children[i]
}

// own returns the node, or a copy if it belongs to another tree. The copy has room for
// one entry more.
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
