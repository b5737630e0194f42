// SPDX-License-Identifier: Apache-2.0

package heapsize

import "math/bits"

const (
	wordSize = bits.UintSize / 8
	page     = 8192
	maxSmall = 32768
	// An object with pointers larger than maxBitmap, but small, has a header of one word.
	maxBitmap = wordSize * bits.UintSize
)

// classes are the sizes of Go's allocator for small objects, by eighths of the requested size.
// append reveals them: a slice's capacity is all memory allocated for it.
var classes = func() (sizes [maxSmall/8 + 1]uint16) {
	for i := 1; i < len(sizes); i++ {
		sizes[i] = sizes[i-1]
		if n := i * 8; n > int(sizes[i]) {
			sizes[i] = uint16(cap(append([]byte(nil), make([]byte, n)...)))
		}
	}
	return sizes
}()

func allocated(n uintptr, pointers bool) uintptr {
	if pointers && n > maxBitmap && n <= maxSmall-wordSize {
		n += wordSize
	}
	if n > maxSmall {
		return roundUp(n, page)
	}
	return uintptr(classes[(n+7)/8])
}

func roundUp(n, to uintptr) uintptr { return (n + to - 1) / to * to }

// Layout of Go's maps, which are Swiss tables.
const (
	mapHeader = 6 * wordSize
	// groupSlots is the number of entries per control word. A map with at most that many has one
	// group and no tables.
	groupSlots  = 8
	controlWord = 8
	// maxInline is the largest key and the largest value stored in a slot.
	maxInline = 128
	// maxTable is the most slots of a table. A map with more has several, in a directory of
	// pointers. A table is at most seven eighths full.
	maxTable    = 1024
	tableHeader = 4 * wordSize
)

// mapMemory returns the size of a map after n single insertions, without the memory referenced by
// its entries.
func mapMemory(n int, key, elem *plan) uintptr {
	size, slot := uintptr(mapHeader), uintptr(0)
	for _, p := range [...]*plan{key, elem} {
		if p.size <= maxInline {
			slot += p.size
		} else {
			slot += wordSize
			size += uintptr(n) * p.alloc
		}
	}
	group := controlWord + groupSlots*roundUp(slot, wordSize)
	switch {
	case n == 0:
		return size
	case n <= groupSlots:
		return size + allocated(group, true)
	}
	slots := uintptr(1) << bits.Len(uint(n*8+6)/7-1)
	tables := max(1, slots/maxTable)
	each := tableHeader + allocated(slots/tables/groupSlots*group, true)
	return size + tables*each + allocated(tables*wordSize, true)
}
