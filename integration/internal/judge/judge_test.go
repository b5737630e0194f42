// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
)

// past is a history of two keys: a is written at 2, 4 and 6 and leaves flip=on
// at 4; b is written at 3, deleted at 5 and written again at 7.
func past() *History {
	h := NewHistory()
	for _, c := range []Change{
		{Rev: 2, Key: "x/a", Content: "a1", Labels: labels.Set{"flip": "on"}},
		{Rev: 3, Key: "y/b", Content: "b1", Labels: labels.Set{"flip": "on"}},
		{Rev: 4, Key: "x/a", Content: "a2", Labels: labels.Set{"flip": "off"}},
		{Rev: 5, Key: "y/b", Deleted: true},
		{Rev: 6, Key: "x/a", Content: "a3", Labels: labels.Set{"flip": "off"}},
		{Rev: 7, Key: "y/b", Content: "b2", Labels: labels.Set{"flip": "on"}},
	} {
		h.add(&c)
	}
	return h
}

func TestExpect(t *testing.T) {
	everything := Selection{}
	require.Equal(t, []Event{
		{Kind: watch.Added, Key: "y/b", RV: 3, Content: "b1"}, {Kind: watch.Modified, Key: "x/a", RV: 4, Content: "a2"}, {Kind: watch.Deleted, Key: "y/b", RV: 5, Content: "b1"},
	}, past().Expect(everything, 2, 5))
	on := Selection{Labels: labels.SelectorFromSet(labels.Set{"flip": "on"})}
	require.Equal(t, []Event{
		{Kind: watch.Added, Key: "x/a", RV: 2, Content: "a1"}, {Kind: watch.Added, Key: "y/b", RV: 3, Content: "b1"}, {Kind: watch.Deleted, Key: "x/a", RV: 4, Content: "a1"},
		{Kind: watch.Deleted, Key: "y/b", RV: 5, Content: "b1"}, {Kind: watch.Added, Key: "y/b", RV: 7, Content: "b2"},
	}, past().Expect(on, 0, 7))
	require.Equal(t, []Event{{Kind: watch.Added, Key: "y/b", RV: 7, Content: "b2"}}, past().Expect(Selection{Namespace: "y"}, 5, 7))
}

func TestWrites(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		write Write
		found int
	}{
		"there":          {Write{Key: "x/a", Content: "a2", Done: now, RV: 4}, 0},
		"unknown":        {Write{Key: "x/a", Content: "lost"}, 0},
		"lost":           {Write{Key: "x/a", Content: "lost", Done: now, RV: 8}, 1},
		"another's":      {Write{Key: "x/a", Content: "mine", Done: now, RV: 4}, 1},
		"another object": {Write{Key: "y/b", Content: "a2", Done: now, RV: 4}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			require.Len(t, Writes(past(), []Write{c.write}), c.found)
		})
	}
	twice := past()
	twice.add(&Change{Rev: 8, Key: "x/a", Content: "a3"})
	require.Len(t, Writes(twice, nil), 1)
}

func TestReads(t *testing.T) {
	start := time.Now()
	at := func(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }
	writes := []Write{
		{Key: "x/a", Content: "a1", Done: at(2), RV: 2},
		{Key: "x/a", Content: "a2", Done: at(4), RV: 4},
		{Key: "y/b", Deletes: true, Done: at(5), RV: 3},
		{Key: "x/a", Content: "a3", RV: 6}, // never acknowledged
	}
	two := map[string]Item{"x/a": {RV: 2, Content: "a1"}, "y/b": {RV: 3, Content: "b1"}}
	five := map[string]Item{"x/a": {RV: 4, Content: "a2"}}
	object := func(begun int, rv int64, content string) Read {
		return Read{Kind: "GET", Fresh: true, Begun: at(begun), Key: "x/a", RV: rv, Items: map[string]Item{"x/a": {RV: rv, Content: content}}}
	}
	for name, c := range map[string]struct {
		read  Read
		found int
	}{
		"a state":                    {Read{Begun: at(1), RV: 3, Items: two}, 0},
		"a state between":            {Read{Begun: at(9), RV: 3, Items: two}, 0},
		"a state that never was":     {Read{Begun: at(1), RV: 3, Items: five}, 1},
		"the state of another":       {Read{Begun: at(1), RV: 5, Items: two}, 1},
		"fresh":                      {Read{Fresh: true, Begun: at(6), RV: 5, Items: five}, 0},
		"fresh, newer than it must":  {Read{Fresh: true, Begun: at(3), RV: 5, Items: five}, 0},
		"stale":                      {Read{Fresh: true, Begun: at(5), RV: 3, Items: two}, 1},
		"stale after a deletion":     {Read{Fresh: true, Begun: at(6), RV: 4, Items: map[string]Item{"x/a": {RV: 4, Content: "a2"}, "y/b": {RV: 3, Content: "b1"}}}, 1},
		"below what was asked":       {Read{Begun: at(1), Least: 4, RV: 3, Items: two}, 1},
		"an object":                  {object(5, 4, "a2"), 0},
		"an unacknowledged object":   {object(5, 6, "a3"), 0},
		"a stale object":             {object(5, 2, "a1"), 1},
		"an object that never was":   {object(1, 4, "a1"), 1},
		"nothing, and rightly":       {Read{Fresh: true, Begun: at(6), Key: "y/b"}, 0},
		"nothing, and wrongly":       {Read{Fresh: true, Begun: at(5), Key: "x/a"}, 1},
		"nothing, before the object": {Read{Fresh: true, Begun: at(1), Key: "x/a"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			reads := []Read{c.read}
			Absent(past(), reads)
			require.Len(t, Reads(past(), writes, reads), c.found)
		})
	}
}
