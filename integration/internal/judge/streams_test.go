// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
)

// twins is past, and after it the revision 8, which writes both keys, and 9,
// which writes one.
func twins() *History {
	h := past()
	for _, c := range []Change{
		{Rev: 8, Key: "x/a", Content: "a4", Labels: labels.Set{"flip": "on"}},
		{Rev: 8, Key: "y/b", Content: "b3", Labels: labels.Set{"flip": "on"}},
		{Rev: 9, Key: "x/a", Content: "a5", Labels: labels.Set{"flip": "on"}},
	} {
		h.add(&c)
	}
	return h
}

func bookmark(rv int64) Event { return Event{Kind: watch.Bookmark, RV: rv} }
func endMark(rv int64) Event  { return Event{Kind: watch.Bookmark, RV: rv, Ends: true} }
func added(key string, rv int64, content string) Event {
	return Event{Kind: watch.Added, Key: key, RV: rv, Content: content}
}

// TestStreams: a judge that is never against anything is none.
func TestStreams(t *testing.T) {
	whole := twins().Expect(Selection{}, 0, 9)
	require.Len(t, whole, 9)
	changed := func(i int, change func(*Event)) []Event {
		events := slices.Clone(whole)
		change(&events[i])
		return events
	}
	with := func(at int, e ...Event) []Event { return slices.Insert(slices.Clone(whole), at, e...) }
	without := func(i int) []Event { return slices.Delete(slices.Clone(whole), i, i+1) }
	on := Selection{Labels: labels.SelectorFromSet(labels.Set{"flip": "on"})}
	for name, c := range map[string]struct {
		stream Stream
		upTo   int64
		found  []Property
	}{
		"whole":                        {Stream{Events: whole}, 9, nil},
		"resumed":                      {Stream{From: 4, Events: whole[3:]}, 9, nil},
		"ended before":                 {Stream{Events: whole[:3]}, 9, nil},
		"ended within a revision":      {Stream{Events: whole[:7]}, 9, nil},
		"above what is judged":         {Stream{Events: changed(8, func(e *Event) { e.Content = "?" })}, 8, nil},
		"bookmarks":                    {Stream{Events: with(3, bookmark(4), bookmark(4))}, 9, nil},
		"bookmark of the future":       {Stream{Events: append(slices.Clone(whole), bookmark(9))}, 9, nil},
		"a selection":                  {Stream{Selection: on, Events: twins().Expect(on, 0, 9)}, 9, nil},
		"out of order":                 {Stream{Events: append(slices.Clone(whole[:4]), whole[5], whole[4], whole[6], whole[7], whole[8])}, 9, []Property{Ordered, Reliable}},
		"twice":                        {Stream{Events: with(3, whole[2])}, 9, []Property{Unique, Exact}},
		"a gap":                        {Stream{Events: without(4)}, 9, []Property{Reliable}},
		"half a revision":              {Stream{Events: without(7)}, 9, []Property{Atomic}},
		"the other half":               {Stream{Events: without(6)}, 9, []Property{Reliable}},
		"resumed late":                 {Stream{From: 4, Events: whole[4:]}, 9, []Property{Resumable}},
		"resumed early":                {Stream{From: 4, Events: whole[2:]}, 9, []Property{Resumable, Exact}},
		"bookmark too early":           {Stream{Events: with(3, bookmark(5))}, 9, []Property{Bookmarkable}},
		"bookmark without an event":    {Stream{Events: slices.Insert(without(4), 4, bookmark(6))}, 9, []Property{Bookmarkable}},
		"bookmark in a revision":       {Stream{Events: append(slices.Clone(whole[:7]), bookmark(8))}, 9, []Property{Bookmarkable}},
		"bookmark goes back":           {Stream{Events: with(4, bookmark(3))}, 9, []Property{Bookmarkable}},
		"bookmark at the end of a gap": {Stream{Events: []Event{bookmark(9)}}, 9, []Property{Bookmarkable}},
		"wrong content":                {Stream{Events: changed(2, func(e *Event) { e.Content = "?" })}, 9, []Property{Exact}},
		"wrong digest":                 {Stream{Events: changed(2, func(e *Event) { e.Sum++ })}, 9, []Property{Exact}},
		"wrong type":                   {Stream{Events: changed(2, func(e *Event) { e.Kind = watch.Added })}, 9, []Property{Exact}},
		"deletion at the old version":  {Stream{Events: changed(3, func(e *Event) { e.RV = 3 })}, 9, []Property{Unique, Exact}},
		"an event that never was":      {Stream{Events: append(slices.Clone(whole), added("x/a", 9, "?"))}, 9, []Property{Unique, Exact}},
		"an event of another key":      {Stream{Events: with(9, added("z/c", 9, "?"))}, 9, []Property{Exact}},
		"leaving is not told":          {Stream{Selection: on, Events: slices.Delete(twins().Expect(on, 0, 9), 2, 3)}, 9, []Property{Reliable}},
		"marks what nobody asked for":  {Stream{Events: with(3, endMark(4))}, 9, []Property{Initial}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.found, properties(Streams(twins(), c.upTo, c.stream))) })
	}
}

func TestStreamsThatBeginWithTheState(t *testing.T) {
	a, b := added("x/a", 4, "a2"), added("y/b", 3, "b1")
	rest := twins().Expect(Selection{}, 4, 9)
	then := func(initial ...Event) []Event { return append(initial, rest...) }
	for name, c := range map[string]struct {
		begin  Begin
		from   int64
		events []Event
		found  []Property
	}{
		"marked":                          {Marked, 4, then(b, a, endMark(4)), nil},
		"marked, in any order":            {Marked, 4, then(a, b, endMark(4)), nil},
		"marked, cut off before the mark": {Marked, 4, []Event{b, a}, nil},
		"marked, of nothing":              {Marked, 0, append([]Event{endMark(1)}, twins().Expect(Selection{}, 1, 9)...), nil},
		"marked, an object too few":       {Marked, 4, then(a, endMark(4)), []Property{Initial}},
		"marked, an old object":           {Marked, 4, then(b, added("x/a", 2, "a1"), endMark(4)), []Property{Initial}},
		"marked, too old":                 {Marked, 5, then(b, a, endMark(4)), []Property{Initial}},
		"marked, at another version":      {Marked, 4, then(b, a, endMark(5)), []Property{Initial}},
		"marked, twice the same object":   {Marked, 4, then(b, a, a, endMark(4)), []Property{Initial}},
		"marked twice":                    {Marked, 4, then(b, a, endMark(4), endMark(4)), []Property{Initial}},
		"marked, a deletion":              {Marked, 4, then(b, rest[0], endMark(4)), []Property{Initial}},
		"marked, a bookmark before":       {Marked, 4, then(b, bookmark(4), a, endMark(4)), []Property{Initial}},
		"marked, and then a gap":          {Marked, 4, slices.Delete(then(b, a, endMark(4)), 4, 5), []Property{Reliable}},
		"unmarked":                        {Unmarked, 0, then(b, a), nil},
		"unmarked, of a version":          {Unmarked, 4, then(b, a), nil},
		"unmarked, of nothing":            {Unmarked, 0, twins().Expect(Selection{}, 0, 9), nil},
		"unmarked, cut off":               {Unmarked, 4, []Event{b}, nil},
		"unmarked, an object too few":     {Unmarked, 0, then(a), []Property{Initial}},
		"unmarked, too old":               {Unmarked, 5, then(b, a), []Property{Initial}},
		"unmarked, and then a gap":        {Unmarked, 0, slices.Delete(then(b, a), 3, 4), []Property{Reliable}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.found, properties(Streams(twins(), 9, Stream{Begin: c.begin, From: c.from, Events: c.events})))
		})
	}
}

func properties(found Violations) (out []Property) {
	for _, v := range found {
		if !slices.Contains(out, v.Property) {
			out = append(out, v.Property)
		}
	}
	return out
}
