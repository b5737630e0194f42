// SPDX-License-Identifier: Apache-2.0

package dedup

import (
	"hash/maphash"
	"math"
	"math/bits"
	"unsafe"
)

const (
	// maxPart is how many entries a kept part has at most, those of what is in it
	// included. A place in the table keeps no more than that in memory.
	maxPart = 16
	// maxParts is how many parts a table has room for at most.
	maxParts = 1 << 9
)

// parts keeps small JSON objects and arrays that were met lately, so that equal ones
// are one wherever they stand. Each has one place, where it gives way to the next
// one that belongs there.
//
// The parts within a part were shared before it is looked up, so that equal ones are
// the same memory. Strings and numbers are compared.
type parts struct {
	seed  maphash.Seed
	slots []part
	// missed counts the parts that were kept since the table has grown.
	missed int
}

// part is a map[string]any or a []any, and the hash of what is in it.
type part struct {
	hash  uint64
	value any
}

// keep puts a part into its place.
func (p *parts) keep(hash uint64, value any) {
	if p.missed++; p.missed > len(p.slots) && len(p.slots) < maxParts {
		p.slots, p.missed = make([]part, max(minSlots, 4*len(p.slots))), 0
	}
	p.slots[hash&uint64(len(p.slots)-1)] = part{hash, value}
}

// at returns what is kept with a hash, or nil.
func (p *parts) at(hash uint64) any {
	if len(p.slots) == 0 {
		return nil
	}
	if at := &p.slots[hash&uint64(len(p.slots)-1)]; at.hash == hash {
		return at.value
	}
	return nil
}

// object returns the object with these entries that is kept, or nil.
func (p *parts) object(hash uint64, entries []entry) map[string]any {
	kept, _ := p.at(hash).(map[string]any)
	if kept == nil || len(kept) != len(entries) {
		return nil
	}
	for _, e := range entries {
		if value, ok := kept[e.key]; !ok || !identical(value, e.value) {
			return nil
		}
	}
	return kept
}

// list returns the array with these elements that is kept, or nil.
func (p *parts) list(hash uint64, elements []any) any {
	value := p.at(hash)
	kept, _ := value.([]any)
	if kept == nil || len(kept) != len(elements) {
		return nil
	}
	for i := range elements {
		if !identical(kept[i], elements[i]) {
			return nil
		}
	}
	return value
}

// The hashes of values of a kind begin with one of these.
const (
	hashedNil = 0x9e3779b97f4a7c15 + iota
	hashedFalse
	hashedTrue
	hashedInt
	hashedFloat
	hashedText
	hashedObject
	hashedList
)

func mixed(a, b uint64) uint64 {
	high, low := bits.Mul64(a^0xa0761d6478bd642f, b^0xe7037ed1a0b428db)
	return high ^ low
}

// hashObject returns the hash of an object with these entries in any order. If p does
// not keep such an object, ok is false.
func (p *parts) hashObject(entries []entry) (hash uint64, ok bool) {
	p.prepare()
	hash = hashedObject
	for _, e := range entries {
		value, ok := p.hash(e.value)
		if !ok || len(e.key) > maxText {
			return 0, false
		}
		hash += mixed(maphash.String(p.seed, e.key), value)
	}
	return hash, true
}

// hashList returns the hash of an array with these elements. If p does not keep such an
// array, ok is false.
func (p *parts) hashList(elements []any) (hash uint64, ok bool) {
	p.prepare()
	hash = hashedList
	for _, e := range elements {
		value, ok := p.hash(e)
		if !ok {
			return 0, false
		}
		hash = mixed(hash, value)
	}
	return hash, true
}

func (p *parts) prepare() {
	if p.slots == nil {
		p.seed, p.slots = maphash.MakeSeed(), make([]part, minSlots)
	}
}

// hash returns the hash of a value within a part, and false if no part with such a
// value is to be kept: long strings, and what no decoder of JSON makes.
func (p *parts) hash(value any) (hash uint64, ok bool) {
	switch v := value.(type) {
	case nil:
		return hashedNil, true
	case bool:
		if v {
			return hashedTrue, true
		}
		return hashedFalse, true
	case int64:
		return mixed(hashedInt, uint64(v)), true
	case float64:
		return mixed(hashedFloat, math.Float64bits(v)), true
	case string:
		if len(v) > maxText {
			return 0, false
		}
		return mixed(hashedText, maphash.String(p.seed, v)), true
	case map[string]any:
		return mixed(hashedObject, uint64(uintptr(mapOf(v)))), true
	case []any:
		return mixed(hashedList, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(v))))+uint64(len(v))), true
	}
	return 0, false
}

// mapOf returns the address of a map.
func mapOf(m map[string]any) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&m)) }

// identical reports whether two values are equal: objects and arrays only if they are
// the same memory, numbers only if they have the same bits.
func identical(a, b any) bool {
	switch v := a.(type) {
	case nil:
		return b == nil
	case bool:
		o, ok := b.(bool)
		return ok && v == o
	case int64:
		o, ok := b.(int64)
		return ok && v == o
	case float64:
		o, ok := b.(float64)
		return ok && math.Float64bits(v) == math.Float64bits(o)
	case string:
		o, ok := b.(string)
		return ok && v == o
	case map[string]any:
		o, ok := b.(map[string]any)
		return ok && mapOf(v) == mapOf(o)
	case []any:
		// A nil array is not an empty one: both begin nowhere or somewhere.
		o, ok := b.([]any)
		return ok && len(v) == len(o) && unsafe.SliceData(v) == unsafe.SliceData(o)
	}
	return false
}
