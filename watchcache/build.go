// SPDX-License-Identifier: Apache-2.0

package watchcache

import "slices"

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
