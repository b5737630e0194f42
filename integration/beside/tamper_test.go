// SPDX-License-Identifier: Apache-2.0

package beside

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// tamper changes what one side answers, to see that the comparison notices.
type tamper struct {
	answer func(*request, *answer)
	event  func(event) []event // the events to deliver in place of one
}

// onLists changes lists in JSON.
func onLists(change func(q *request, meta object, items []any) []any) tamper {
	return tamper{answer: func(q *request, a *answer) {
		var list object
		if a.status != http.StatusOK || json.Unmarshal(a.body, &list) != nil {
			return
		}
		if items, ok := list["items"].([]any); ok {
			list["items"] = change(q, list["metadata"].(object), items)
			a.body, _ = json.Marshal(list)
		}
	}}
}

// everyFifth replaces each fifth event, but for those that end a look.
func everyFifth(by func(event) []event) tamper {
	calls := 0
	return tamper{event: func(e event) []event {
		if calls++; calls%5 > 0 || e.Type == "BOOKMARK" || strings.Contains(encode(e.Object), `"mark":"`) {
			return []event{e}
		}
		return by(e)
	}}
}

// The differences that are put in, one at a time.
func differences() map[string]tamper {
	return map[string]tamper{
		"the last object of a page is missing": onLists(func(_ *request, meta object, items []any) []any {
			if at(meta, "continue") != "" {
				return items[:len(items)-1]
			}
			return items
		}),
		"a token begins one object later": onLists(func(_ *request, meta object, items []any) []any {
			if token := at(meta, "continue"); token != "" {
				decoded, _ := base64.RawURLEncoding.DecodeString(token)
				meta["continue"] = base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(decoded), `\u0000"`, `z"`, 1)))
			}
			return items
		}),
		"the remaining objects are one too many": onLists(func(_ *request, meta object, items []any) []any {
			if n, ok := meta["remainingItemCount"].(float64); ok {
				meta["remainingItemCount"] = n + 1
			}
			return items
		}),
		"a consistent list is of an older version": onLists(func(q *request, meta object, items []any) []any {
			if q.query.Get("resourceVersion") == "" && q.query.Get("continue") == "" {
				meta["resourceVersion"] = "2"
			}
			return items
		}),
		"an object that is not there is gone": {answer: func(_ *request, a *answer) {
			if a.status == http.StatusNotFound {
				a.status = http.StatusGone
			}
		}},
		"an event is lost":     everyFifth(func(event) []event { return nil }),
		"an event comes twice": everyFifth(func(e event) []event { return []event{e, e} }),
		"an event is of another kind": everyFifth(func(e event) []event {
			e.Type = map[string]string{"ADDED": "MODIFIED", "MODIFIED": "ADDED", "DELETED": "MODIFIED"}[e.Type]
			return []event{e}
		}),
		"a deletion has no content": {event: func(e event) []event {
			if e.Type == "DELETED" {
				delete(e.Object, "spec")
			}
			return []event{e}
		}},
		"initial events have no end": {event: func(e event) []event {
			if e.Type == "BOOKMARK" {
				delete(metadata(e.Object), "annotations")
			}
			return []event{e}
		}},
	}
}

// Each difference that is put into the answers of one side is found.
func TestSeededDifferencesAreFound(t *testing.T) {
	r := newRun(t, &counts{ruled: map[string]int{}})
	for name, with := range differences() {
		t.Run(name, func(t *testing.T) {
			r.sides[ours].tamper = with
			defer func() { r.sides[ours].tamper = tamper{} }()
			until := r.requests.Load() + 2000
			for n := uint64(1); r.perform(program(n)) == nil; n++ {
				require.Less(t, r.requests.Load(), until, "no request shows the difference")
			}
		})
	}
}
