// SPDX-License-Identifier: Apache-2.0

package heapsize

import (
	"math/bits"
	"reflect"
	"unsafe"
)

// walk is one walk over a value.
type walk struct {
	bytes uintptr
	// visits and depth are how many values may still be visited, and how deep
	// the walk is.
	visits, depth int
}

// sliceHeader is how Go lays out a slice.
type sliceHeader struct {
	data     unsafe.Pointer
	len, cap int
}

// text counts the memory of a string.
func (w *walk) text(s string) { w.bytes += allocated(uintptr(len(s)), false) }

// value counts what the value at v, which has the plan p, refers to, but not
// the value itself.
func (w *walk) value(v unsafe.Pointer, p *plan) {
	for _, offset := range p.strings {
		w.text(*(*string)(unsafe.Add(v, offset)))
	}
	if len(p.refs) == 0 {
		return
	}
	if w.visits <= 0 || w.depth >= maxDepth {
		return
	}
	w.visits--
	w.depth++
	for i := range p.refs {
		r := &p.refs[i]
		at := unsafe.Add(v, r.offset)
		// The first word of all of them is zero in a value without reference,
		// which most are.
		if *(*unsafe.Pointer)(at) != nil || r.kind == array {
			w.follow(at, r)
		}
	}
	w.depth--
}

// follow counts what the reference at v, which is not nil, leads to.
func (w *walk) follow(v unsafe.Pointer, r *ref) {
	switch r.kind {
	case pointer:
		w.bytes += r.elem.alloc
		w.value(*(*unsafe.Pointer)(v), r.elem)
	case slice:
		s := (*sliceHeader)(v)
		w.bytes += allocated(uintptr(s.cap)*r.elem.size, r.elem.pointers)
		w.values(s.data, s.len, r.elem)
	case array:
		w.values(v, r.count, r.elem)
	case table:
		w.table(v, r.table)
	case anyInterface:
		w.any(*(*any)(v))
	case methodInterface:
		// The conversion does not depend on the methods.
		w.any(*(*interface{ M() })(v))
	}
}

// values counts what n values in a row refer to.
func (w *walk) values(v unsafe.Pointer, n int, p *plan) {
	if !p.leads() {
		return
	}
	for i := 0; i < n && w.visits > 0; i++ {
		w.visits--
		w.value(unsafe.Add(v, uintptr(i)*p.size), p)
	}
}

const (
	stringBox = unsafe.Sizeof("")
	sliceBox  = unsafe.Sizeof([]any{})
	numberBox = unsafe.Sizeof(int64(0))
	// static is how many small integers Go keeps ready made.
	static = 256
)

// any counts what an interface holds. Of the types of decoded JSON it knows
// without a plan what that is.
func (w *walk) any(v any) {
	switch v := v.(type) {
	case nil, bool:
	case string:
		if v != "" {
			w.bytes += stringBox
			w.text(v)
		}
	case int64:
		if uint64(v) >= static {
			w.bytes += numberBox
		}
	case float64:
		w.bytes += numberBox
	case map[string]any:
		w.object(v)
	case []any:
		w.bytes += allocated(sliceBox, true)
		w.list(v)
	default:
		w.boxed(v)
	}
}

// object counts a JSON object.
func (w *walk) object(m map[string]any) {
	if m == nil || w.visits <= 0 || w.depth >= maxDepth {
		return
	}
	w.depth++
	w.bytes += objects.memory(len(m))
	for key, v := range m {
		w.visits--
		w.text(key)
		w.any(v)
	}
	w.depth--
}

// list counts a JSON array.
func (w *walk) list(s []any) {
	if w.visits <= 0 || w.depth >= maxDepth {
		return
	}
	w.depth++
	w.bytes += allocated(uintptr(cap(s))*unsafe.Sizeof(any(nil)), true)
	for _, v := range s {
		w.visits--
		w.any(v)
	}
	w.depth--
}

// mapPlan says what maps of one type take, and how their entries are walked.
type mapPlan struct {
	// group is what eight slots take with their control word, and pointers
	// whether the collector looks into them.
	group    uintptr
	pointers bool
	// outside is what an entry takes whose key or value is too large to lie in
	// its slot.
	outside uintptr
	// key and elem are the plans of both.
	key, elem *plan
	walks     mapWalk
	typ       reflect.Type // of maps that are walked by reflection
}

type mapWalk uint8

const (
	noEntries     mapWalk = iota // nothing in them refers to anything
	stringEntries                // laid out as a map[string]string
	anyEntries                   // laid out as a map[string]any
	threeWords                   // laid out as a map[string][]byte
	sevenWords                   // laid out as a map[string]resource.Quantity
	otherEntries                 // by reflection
)

// How Go's maps, which are Swiss tables, lie in memory.
const (
	mapHeader = 6 * wordSize
	// groupSlots is how many entries share a control word. A map of no more
	// has one group, and no tables.
	groupSlots = 8
	// maxInline is the largest key and the largest value that lie in a slot.
	maxInline = 128
	// maxTable is how many slots a table has at most; a map with more has
	// several, in a directory of pointers. A table is seven eighths full at
	// most.
	maxTable    = 1024
	tableHeader = 4 * wordSize
	wordSize    = unsafe.Sizeof(uintptr(0))
)

// objects is the plan of map[string]any.
var objects = newMapPlan(reflect.TypeFor[map[string]any]())

func newMapPlan(t reflect.Type) *mapPlan {
	m := &mapPlan{pointers: hasPointers(t.Key()) || hasPointers(t.Elem())}
	inSlot := func(t reflect.Type) (size, align uintptr) {
		if t.Size() <= maxInline {
			return t.Size(), uintptr(t.Align())
		}
		m.outside += allocated(t.Size(), hasPointers(t))
		m.pointers = true
		return wordSize, wordSize
	}
	key, keyAlign := inSlot(t.Key())
	elem, elemAlign := inSlot(t.Elem())
	slot := roundUp(roundUp(key, elemAlign)+elem, max(keyAlign, elemAlign))
	m.group = wordSize8 + groupSlots*slot
	return m
}

// wordSize8 is the size of a group's control word, on any machine.
const wordSize8 = 8

// memory returns what a map takes that n entries were put into one by one,
// without what these refer to.
func (m *mapPlan) memory(n int) uintptr {
	size := allocated(mapHeader, true) + uintptr(n)*m.outside
	switch {
	case n == 0:
		return size
	case n <= groupSlots:
		return size + allocated(m.group, m.pointers)
	}
	tables, slots := 1, ceilPow2((n*8+6)/7)
	if slots > maxTable {
		const full = maxTable * 7 / 8
		tables, slots = ceilPow2((n+full-1)/full), maxTable
	}
	each := allocated(tableHeader, true) + allocated(uintptr(slots/groupSlots)*m.group, m.pointers)
	return size + uintptr(tables)*each + allocated(uintptr(tables)*wordSize, true)
}

func ceilPow2(n int) int { return 1 << bits.Len(uint(n-1)) }

func roundUp(n, to uintptr) uintptr { return (n + to - 1) / to * to }

// table makes the plan of a map type.
func (c *compiler) table(t reflect.Type) *mapPlan {
	m := newMapPlan(t)
	m.key, m.elem = c.plan(t.Key()), c.plan(t.Elem())
	text := t.Key().Kind() == reflect.String && !opaque(t.Key())
	switch elem := t.Elem(); {
	case !hasPointers(t.Key()) && !hasPointers(elem):
		m.walks = noEntries
	case text && elem.Kind() == reflect.String:
		m.walks = stringEntries
	case text && elem.Kind() == reflect.Interface && elem.NumMethod() == 0:
		m.walks = anyEntries
	case text && elem.Size() == 3*wordSize && uintptr(elem.Align()) == wordSize:
		m.walks = threeWords
	case text && elem.Size() == 7*wordSize && uintptr(elem.Align()) == wordSize:
		m.walks = sevenWords
	default:
		m.walks = otherEntries
		m.typ = t
	}
	return m
}

// laidOut counts the map at v, whose values are laid out as V is. The copies of them keep
// nothing alive, the map does.
func laidOut[V any](w *walk, v unsafe.Pointer, m *mapPlan) {
	entries := *(*map[string]V)(v)
	w.bytes += m.memory(len(entries))
	var value V // outside of the loop, or it would be allocated
	for key, entry := range entries {
		w.text(key)
		value = entry
		w.value(unsafe.Pointer(&value), m.elem)
	}
}

// table counts the map at v, which is not nil.
func (w *walk) table(v unsafe.Pointer, m *mapPlan) {
	switch m.walks {
	case stringEntries:
		entries := *(*map[string]string)(v)
		w.bytes += m.memory(len(entries))
		for key, value := range entries {
			w.text(key)
			w.text(value)
		}
		w.visits -= len(entries)
	case anyEntries:
		w.object(*(*map[string]any)(v))
	case threeWords:
		laidOut[[3]uintptr](w, v, m)
	case sevenWords:
		laidOut[[7]uintptr](w, v, m)
	default:
		// The length of every map type is found alike.
		n := len(*(*map[string]string)(v))
		w.bytes += m.memory(n)
		if n > 0 && m.walks == otherEntries {
			w.entries(v, m)
		}
	}
}

// entries counts what the entries of the map at v refer to, by reflection, which allocates:
// few types have such maps.
func (w *walk) entries(v unsafe.Pointer, m *mapPlan) {
	key, elem := reflect.New(m.typ.Key()), reflect.New(m.typ.Elem())
	table := *(*unsafe.Pointer)(v) // or what v points at would be allocated
	for iter := reflect.NewAt(m.typ, unsafe.Pointer(&table)).Elem().MapRange(); w.visits > 0 && iter.Next(); {
		w.visits--
		key.Elem().SetIterKey(iter)
		w.value(key.UnsafePointer(), m.key)
		elem.Elem().SetIterValue(iter)
		w.value(elem.UnsafePointer(), m.elem)
	}
}
