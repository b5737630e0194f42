// SPDX-License-Identifier: Apache-2.0

package dedup

import "hash/maphash"

const (
	// maxText is the longest string that a table keeps.
	maxText = 256
	// minSlots and maxSlots are how many strings a table has room for, at first
	// and at most.
	minSlots = 1 << 5
	maxSlots = 1 << 11
)

// table keeps strings that were met lately. Each string has one place, where it
// gives way to the next one that belongs there: strings that many objects have are
// there nearly always, and what nobody uses any more goes. Package unique can't do
// this: what it keeps goes with the last handle, and a field of type string has no
// room for a handle.
type table struct {
	seed  maphash.Seed
	slots []slot
	// missed counts the strings that were not there since the table has grown.
	missed int
}

type slot struct {
	text string
	// boxed is text in an interface; nil until someone needs that.
	boxed any
}

// place returns the place of a string, and whether the string was there; if not, place
// puts it there. A string that is too long to be kept, or empty, has no place: nil.
func (t *table) place(text string) (at *slot, found bool) {
	if len(text) == 0 || len(text) > maxText {
		return nil, false
	}
	if t.slots == nil {
		t.seed, t.slots = maphash.MakeSeed(), make([]slot, minSlots)
	}
	at = &t.slots[maphash.String(t.seed, text)&uint64(len(t.slots)-1)]
	if at.text == text {
		return at, true
	}
	if t.missed++; t.missed > len(t.slots) && len(t.slots) < maxSlots {
		t.slots, t.missed = make([]slot, 4*len(t.slots)), 0
		at = &t.slots[maphash.String(t.seed, text)&uint64(len(t.slots)-1)]
	}
	*at = slot{text: text}
	return at, false
}

// text returns an equal string that was met before, if the table has one.
func (t *table) text(text string) string {
	if at, found := t.place(text); found {
		return at.text
	}
	return text
}

// box does the same for a string in an interface, which is value.
func (t *table) box(text string, value any) any {
	at, found := t.place(text)
	switch {
	case at == nil:
		return value
	case !found:
		at.boxed = value
		return value
	case at.boxed == nil:
		at.boxed = at.text
	}
	return at.boxed
}
