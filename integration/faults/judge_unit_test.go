// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
)

// past is a history of two keys: a is written at 2, 4 and 6 and leaves flip=on
// at 4; b is written at 3, deleted at 5 and written again at 7.
func past() *history {
	h := newHistory()
	for _, c := range []change{
		{rev: 2, key: "x/a", content: "a1", labels: labels.Set{"flip": "on"}},
		{rev: 3, key: "y/b", content: "b1", labels: labels.Set{"flip": "on"}},
		{rev: 4, key: "x/a", content: "a2", labels: labels.Set{"flip": "off"}},
		{rev: 5, key: "y/b", deleted: true},
		{rev: 6, key: "x/a", content: "a3", labels: labels.Set{"flip": "off"}},
		{rev: 7, key: "y/b", content: "b2", labels: labels.Set{"flip": "on"}},
	} {
		h.add(&c)
	}
	return h
}

func TestExpect(t *testing.T) {
	everything := selection{labels: labels.Everything()}
	require.Equal(t, []delivered{
		{watch.Added, "y/b", 3, "b1"}, {watch.Modified, "x/a", 4, "a2"}, {watch.Deleted, "y/b", 5, "b1"},
	}, past().expect(everything, 2, 5))
	on := selection{labels: labels.SelectorFromSet(labels.Set{"flip": "on"})}
	require.Equal(t, []delivered{
		{watch.Added, "x/a", 2, "a1"}, {watch.Added, "y/b", 3, "b1"}, {watch.Deleted, "x/a", 4, "a1"},
		{watch.Deleted, "y/b", 5, "b1"}, {watch.Added, "y/b", 7, "b2"},
	}, past().expect(on, 0, 7))
	require.Equal(t, []delivered{{watch.Added, "y/b", 7, "b2"}}, past().expect(selection{namespace: "y", labels: labels.Everything()}, 5, 7))
}

// TestJudgeWatch: a judge that is never against anything is none.
func TestJudgeWatch(t *testing.T) {
	everything := selection{labels: labels.Everything()}
	whole := past().expect(everything, 0, 7)
	broken := func(change func([]delivered) []delivered) []delivered {
		return change(append([]delivered(nil), whole...))
	}
	for name, c := range map[string]struct {
		segments []segment
		upTo     int64
		found    int
	}{
		"whole":           {[]segment{{from: 0, to: 7, events: whole}}, 7, 0},
		"resumed":         {[]segment{{from: 0, to: 4, events: whole[:3]}, {from: 4, to: 7, events: whole[3:]}}, 7, 0},
		"no further yet":  {[]segment{{from: 0, to: 4, events: whole[:3]}}, 7, 0},
		"above the end":   {[]segment{{from: 0, to: 7, events: whole}}, 5, 0},
		"gap":             {[]segment{{from: 0, to: 7, events: broken(func(e []delivered) []delivered { return append(e[:2], e[3:]...) })}}, 7, 1},
		"duplicate":       {[]segment{{from: 0, to: 7, events: append(whole[:6:6], whole[5])}}, 7, 1},
		"end lost":        {[]segment{{from: 0, to: 7, events: whole[:5]}}, 7, 1},
		"content":         {[]segment{{from: 0, to: 7, events: broken(func(e []delivered) []delivered { e[2].content = "other"; return e })}}, 7, 1},
		"kind":            {[]segment{{from: 0, to: 7, events: broken(func(e []delivered) []delivered { e[2].kind = watch.Added; return e })}}, 7, 1},
		"gap at a resume": {[]segment{{from: 0, to: 4, events: whole[:3]}, {from: 4, to: 7, events: whole[4:]}}, 7, 1},
		"disorder":        {[]segment{{from: 0, to: 7, events: whole, disorder: []string{"a bookmark"}}}, 7, 1},
	} {
		t.Run(name, func(t *testing.T) {
			require.Len(t, judgeWatch(past(), everything, c.segments, c.upTo), c.found)
		})
	}
}

func TestJudgeWrites(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		write write
		found int
	}{
		"there":          {write{key: "x/a", content: "a2", done: now, rv: 4}, 0},
		"unknown":        {write{key: "x/a", content: "lost"}, 0},
		"lost":           {write{key: "x/a", content: "lost", done: now, rv: 8}, 1},
		"another's":      {write{key: "x/a", content: "mine", done: now, rv: 4}, 1},
		"another object": {write{key: "y/b", content: "a2", done: now, rv: 4}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			require.Len(t, judgeWrites(past(), []write{c.write}), c.found)
		})
	}
	twice := past()
	twice.add(&change{rev: 8, key: "x/a", content: "a3"})
	require.Len(t, judgeWrites(twice, nil), 1)
}

func TestJudgeReads(t *testing.T) {
	start := time.Now()
	at := func(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }
	writes := []write{
		{key: "x/a", content: "a1", done: at(2), rv: 2},
		{key: "x/a", content: "a2", done: at(4), rv: 4},
		{key: "y/b", deletes: true, done: at(5), rv: 3},
		{key: "x/a", content: "a3", rv: 6}, // never acknowledged
	}
	two := map[string]item{"x/a": {2, "a1"}, "y/b": {3, "b1"}}
	five := map[string]item{"x/a": {4, "a2"}}
	object := func(begun int, rv int64, content string) read {
		return read{kind: "GET", fresh: true, begun: at(begun), key: "x/a", rv: rv, items: map[string]item{"x/a": {rv, content}}}
	}
	for name, c := range map[string]struct {
		read  read
		found int
	}{
		"a state":                    {read{begun: at(1), rv: 3, items: two}, 0},
		"a state between":            {read{begun: at(9), rv: 3, items: two}, 0},
		"a state that never was":     {read{begun: at(1), rv: 3, items: five}, 1},
		"the state of another":       {read{begun: at(1), rv: 5, items: two}, 1},
		"fresh":                      {read{fresh: true, begun: at(6), rv: 5, items: five}, 0},
		"fresh, newer than it must":  {read{fresh: true, begun: at(3), rv: 5, items: five}, 0},
		"stale":                      {read{fresh: true, begun: at(5), rv: 3, items: two}, 1},
		"stale after a deletion":     {read{fresh: true, begun: at(6), rv: 4, items: map[string]item{"x/a": {4, "a2"}, "y/b": {3, "b1"}}}, 1},
		"below what was asked":       {read{begun: at(1), least: 4, rv: 3, items: two}, 1},
		"an object":                  {object(5, 4, "a2"), 0},
		"an unacknowledged object":   {object(5, 6, "a3"), 0},
		"a stale object":             {object(5, 2, "a1"), 1},
		"an object that never was":   {object(1, 4, "a1"), 1},
		"nothing, and rightly":       {read{fresh: true, begun: at(6), key: "y/b"}, 0},
		"nothing, and wrongly":       {read{fresh: true, begun: at(5), key: "x/a"}, 1},
		"nothing, before the object": {read{fresh: true, begun: at(1), key: "x/a"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			reads := []read{c.read}
			absent(past(), reads)
			require.Len(t, judgeReads(past(), writes, reads), c.found)
		})
	}
}

func TestMeasure(t *testing.T) {
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	all := []outcome{
		{at(-50), at(-40), true}, // before
		{at(10), at(20), true},
		{at(500), at(600), true}, // begun after, ended before the two that follow
		{at(30), at(1030), false},
		{at(900), at(1100), true},
		{at(2100), at(2110), true}, // after
	}
	f := measure(all, at(0), at(2000))
	require.Equal(t, figure{total: 4, answered: 3, gap: 900 * time.Millisecond}, f)
	require.Equal(t, "75 %, 0.9 s", f.String())
	require.Equal(t, figure{gap: time.Second}, measure(nil, at(0), at(1000)))
}
