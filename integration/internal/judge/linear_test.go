// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLinearizable(t *testing.T) {
	began := time.Now()
	at := func(n int) time.Duration { return time.Duration(n) * time.Second }
	op := func(call, ret int, verb Verb, outcome Outcome, rv int64, content string) Op {
		return Op{Verb: verb, Key: "x/a", Call: at(call), Return: at(ret), Outcome: outcome, RV: rv, Content: content}
	}
	expecting := func(rv int64, o Op) Op {
		o.Expect = rv
		return o
	}
	made := op(0, 1, Create, OK, 2, "a1")
	second := op(2, 3, Patch, OK, 4, "a2")
	for name, c := range map[string]struct {
		ops   []Op
		found bool
	}{
		"in order":                           {[]Op{made, second, op(4, 5, Get, OK, 4, "a2")}, false},
		"a read beside a write sees either":  {[]Op{made, op(2, 6, Patch, OK, 4, "a2"), op(3, 4, Get, OK, 2, "a1"), op(5, 7, Get, OK, 4, "a2")}, false},
		"a stale read":                       {[]Op{made, second, op(4, 5, Get, OK, 2, "a1")}, true},
		"reads that go back beside a write":  {[]Op{made, op(2, 9, Patch, OK, 4, "a2"), op(3, 4, Get, OK, 4, "a2"), op(5, 6, Get, OK, 2, "a1")}, true},
		"a read before the write":            {[]Op{made, op(2, 3, Get, OK, 4, "a2"), op(4, 5, Patch, OK, 4, "a2")}, true},
		"another content":                    {[]Op{made, op(2, 3, Get, OK, 2, "a2")}, true},
		"another version":                    {[]Op{made, op(2, 3, Get, OK, 3, "a1")}, true},
		"versions that fall":                 {[]Op{made, op(2, 3, Patch, OK, 1, "a2")}, true},
		"absent before":                      {[]Op{op(0, 1, Get, NotFound, 0, ""), op(2, 3, Create, OK, 2, "a1")}, false},
		"absent after":                       {[]Op{made, op(2, 3, Get, NotFound, 0, "")}, true},
		"created twice":                      {[]Op{made, op(2, 3, Create, OK, 4, "a2")}, true},
		"already exists":                     {[]Op{made, op(2, 3, Create, Exists, 0, "a2")}, false},
		"already exists, and does not":       {[]Op{op(2, 3, Create, Exists, 0, "a2")}, true},
		"patched what is absent":             {[]Op{op(2, 3, Patch, OK, 4, "a2")}, true},
		"updated":                            {[]Op{made, expecting(2, op(2, 3, Update, OK, 4, "a2"))}, false},
		"a lost update":                      {[]Op{made, second, expecting(2, op(4, 5, Update, OK, 6, "a3"))}, true},
		"conflict":                           {[]Op{made, second, expecting(2, op(4, 5, Update, Conflict, 0, "a3"))}, false},
		"conflict without a reason":          {[]Op{made, second, expecting(4, op(4, 5, Update, Conflict, 0, "a3"))}, true},
		"deleted":                            {[]Op{made, expecting(2, op(2, 3, Delete, OK, 0, "")), op(4, 5, Get, NotFound, 0, "")}, false},
		"deleted, and still there":           {[]Op{made, expecting(2, op(2, 3, Delete, OK, 0, "")), op(4, 5, Get, OK, 2, "a1")}, true},
		"deleted another version":            {[]Op{made, second, expecting(2, op(4, 5, Delete, OK, 0, ""))}, true},
		"unanswered, and never applied":      {[]Op{made, op(2, 3, Patch, Unanswered, 0, "lost"), op(4, 5, Get, OK, 2, "a1")}, false},
		"unanswered, and applied":            {[]Op{made, op(2, 3, Patch, Unanswered, 0, "a2"), op(2, 5, Get, OK, 2, "a1"), op(6, 7, Get, OK, 4, "a2")}, false},
		"unanswered, applied and taken back": {[]Op{made, op(2, 3, Patch, Unanswered, 0, "a2"), op(4, 5, Get, OK, 4, "a2"), op(6, 7, Get, OK, 2, "a1")}, true},
		"unanswered, seen before it began":   {[]Op{made, op(4, 5, Patch, Unanswered, 0, "a2"), op(2, 3, Get, OK, 4, "a2")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := past()
			for _, change := range h.changes {
				change.Seen = began.Add(time.Minute)
			}
			drawn := 0
			found := Linearizable(h, began, c.ops, time.Minute, func(key string, write func(string) error) {
				drawn++
				path := filepath.Join(t.TempDir(), "picture.html")
				require.NoError(t, write(path))
				content, err := os.ReadFile(path)
				require.NoError(t, err)
				require.NotEmpty(t, content)
			})
			if !c.found {
				require.Empty(t, found)
				return
			}
			require.Equal(t, []Property{Linear}, properties(found))
			require.Equal(t, 1, drawn)
		})
	}
}

// TestUnansweredDeletion: etcd has deleted y/b of version 3 at 5; the deletion may
// be the one without an answer, until the history heard of it.
func TestUnansweredDeletion(t *testing.T) {
	began := time.Now()
	at := func(n int) time.Duration { return time.Duration(n) * time.Second }
	h := past()
	for _, change := range h.changes {
		change.Seen = began.Add(at(10))
	}
	made := Op{Verb: Create, Key: "y/b", Return: at(1), Outcome: OK, RV: 3, Content: "b1"}
	deletion := Op{Verb: Delete, Key: "y/b", Expect: 3, Call: at(2), Return: at(3), Outcome: Unanswered}
	gone := Op{Verb: Get, Key: "y/b", Call: at(6), Return: at(7), Outcome: NotFound}
	there := Op{Verb: Get, Key: "y/b", Call: at(4), Return: at(5), Outcome: OK, RV: 3, Content: "b1"}
	back := there
	back.Call, back.Return = at(8), at(9)
	judge := func(ops ...Op) []Property { return properties(Linearizable(h, began, ops, time.Minute, nil)) }
	require.Empty(t, judge(made, deletion, there, gone))
	require.Equal(t, []Property{Linear}, judge(made, there, gone), "nobody has deleted it")
	require.Equal(t, []Property{Linear}, judge(made, deletion, gone, back), "it is back")
	require.Empty(t, judge(made, deletion, there), "the deletion was applied later")
}
