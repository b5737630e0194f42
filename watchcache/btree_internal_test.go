// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A tree has the entries of a sorted slice, whether they were given to newBtree or set one
// by one, after any removal, and a clone never changes.
func TestBtreeIsASortedSlice(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		any := rapid.Custom(func(t *rapid.T) entry {
			return entry{
				hash:    rapid.Uint64Range(0, 2).Draw(t, "hash"),
				element: &Element{Key: fmt.Sprintf("%05d", rapid.IntRange(0, 4000).Draw(t, "key"))},
			}
		})
		compare := func(a, b entry) int { return a.compare(b.hash, b.element.Key) }
		size := rapid.SampledFrom([]int{0, 1, 32, 33, 1024, 1025, 3000}).Draw(rt, "size")
		var model []entry
		for i := range size {
			model = append(model, entry{hash: uint64(3 * i / size), element: &Element{Key: fmt.Sprintf("%05d", i)}})
		}
		tree := newBtree(model)
		type frozen struct {
			tree *btree
			want []entry
		}
		var clones []frozen
		for range rapid.IntRange(0, 40).Draw(rt, "steps") {
			switch rapid.IntRange(0, 3).Draw(rt, "step") {
			case 0:
				for _, e := range rapid.SliceOfN(any, 0, 200).Draw(rt, "set") {
					tree.set(e)
					at, found := slices.BinarySearchFunc(model, e, compare)
					if found {
						model[at] = e
					} else {
						model = slices.Insert(model, at, e)
					}
				}
			case 1:
				from := rapid.IntRange(0, len(model)).Draw(rt, "from")
				to := min(len(model), from+rapid.IntRange(0, 1000).Draw(rt, "removed"))
				for _, e := range model[from:to] {
					tree.remove(e.hash, e.element.Key)
				}
				model = slices.Delete(model, from, to)
			case 2:
				e := any.Draw(rt, "removed")
				tree.remove(e.hash, e.element.Key)
				model = slices.DeleteFunc(model, func(m entry) bool { return compare(m, e) == 0 })
			case 3:
				clones = append(clones, frozen{tree.clone(), slices.Clone(model)})
			}
			require.Equal(rt, len(model), tree.length)
		}
		clones = append(clones, frozen{tree, model})
		for _, c := range clones {
			all := []entry{}
			walk(rt, c.tree.root, func(e entry) { all = append(all, e) })
			require.True(rt, slices.Equal(c.want, all), "want %d entries, got %d", len(c.want), len(all))
			if len(all) > 0 {
				require.Same(rt, all[len(all)-1].element, c.tree.last())
			} else {
				require.Nil(rt, c.tree.last())
			}
			e := any.Draw(rt, "looked up")
			at, found := slices.BinarySearchFunc(c.want, e, compare)
			got := c.tree.get(e.hash, e.element.Key)
			require.Equal(rt, found, got != nil)
			require.Equal(rt, at, c.tree.rank(e.hash, e.element.Key))
			if found {
				require.Same(rt, c.want[at].element, got)
			}
			most := rapid.IntRange(1, 100).Draw(rt, "most")
			var want, under []*Element
			for _, w := range c.want[at:min(len(c.want), at+most)] {
				if w.hash == e.hash {
					want = append(want, w.element)
				}
			}
			c.tree.under(e.hash, e.element.Key, func(e *Element) bool { under = append(under, e); return len(under) < most })
			require.True(rt, slices.Equal(want, under), "from %v", e)
		}
	})
}

// walk calls yield for all entries below a node, and checks the node.
func walk(t *rapid.T, n *node, yield func(entry)) {
	require.LessOrEqual(t, len(n.entries), maxEntries)
	if n.children == nil {
		for _, e := range n.entries {
			yield(e)
		}
		return
	}
	require.Equal(t, len(n.entries), len(n.children))
	below := 0
	for i, child := range n.children {
		require.Equal(t, n.entries[i], child.entries[0], "an inner node has the first entry of each child")
		walk(t, child, func(e entry) { below++; yield(e) })
	}
	require.Equal(t, below, n.below)
}

// A tree whose entries are removed one by one gives their nodes back.
func TestBtreeShrinks(t *testing.T) {
	const size = 10_000
	all := make([]entry, size)
	for i := range all {
		all[i].element = &Element{Key: fmt.Sprintf("%05d", i)}
	}
	tree := newBtree(all)
	for i, e := range all {
		if i%100 != 0 {
			tree.remove(0, e.element.Key)
		}
	}
	leaves := 0
	var count func(n *node)
	count = func(n *node) {
		if n.children == nil {
			leaves++
		}
		for _, child := range n.children {
			count(child)
		}
	}
	count(tree.root)
	require.Equal(t, size/100, tree.length)
	require.LessOrEqual(t, leaves, 1+4*tree.length/maxEntries)
}

// Entries are sorted as a stable sort sorts them, also those whose hashes fall together.
func TestSortedByHash(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		low := rapid.SampledFrom([]uint64{0, 1, 3, 1<<64 - 1}).Draw(rt, "low bits")
		high := rapid.SampledFrom([]uint64{0, 1 << 63, 3 << 62, 1<<64 - 1<<56}).Draw(rt, "high bits")
		var entries []entry
		for range rapid.IntRange(0, 300).Draw(rt, "entries") {
			entries = append(entries, entry{rapid.Uint64().Draw(rt, "hash") & (low | high), &Element{}})
		}
		want := slices.Clone(entries)
		slices.SortStableFunc(want, func(a, b entry) int { return cmp.Compare(a.hash, b.hash) })
		got := sortedByHash(entries)
		require.Len(rt, got, len(want))
		for i := range want {
			require.Equal(rt, want[i].hash, got[i].hash, "place %d", i)
			require.Same(rt, want[i].element, got[i].element, "place %d", i)
		}
	})
}
