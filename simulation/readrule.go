// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// readRule is what one read may be answered with.
type readRule struct {
	selection selection
	list      bool
	name      string // of a GET
	asked     string
	from      uint64
	match     metav1.ResourceVersionMatch
	limit     int
	// after is the key to continue after, and page the version of the page before;
	// 0: that of now.
	continues bool
	after     string
	page      uint64
	anyPart   bool

	began   time.Time
	current uint64 // the storage's version then
	floor   uint64 // what the cache had reached then
	lost    bool
	stopped bool
	late    bool // the cache was stopped before it was asked
	gone    bool
	fills   int64
	state   pageState
}

// pageState is what a read leaves for the next page.
type pageState struct {
	token string
	after string
	page  uint64
}

// least returns the version that the answer must have reached.
func (r *readRule) least() uint64 {
	switch {
	case r.continues:
		if r.page > 0 {
			return r.page
		}
		return r.current
	case r.asked == "":
		return r.current
	case r.from == 0:
		return r.floor
	}
	return r.from
}

// exact reports whether the answer must be of one version.
func (r *readRule) exact() bool {
	return (r.continues && r.page > 0) || r.match == metav1.ResourceVersionMatchExact ||
		// A limit made a version exact before there was resourceVersionMatch.
		(r.list && r.match == "" && r.limit > 0 && r.from > 0 && r.selection.recursive)
}

// judge returns what is wrong with an answer, "" if nothing.
func (r *readRule) judge(a answer, h *history) string {
	if !r.list {
		return r.judgeGet(a, h)
	}
	switch least := r.least(); {
	case a.at > h.rv:
		return fmt.Sprintf("it is of version %d, and the storage is at %d", a.at, h.rv)
	case a.at < least:
		return fmt.Sprintf("it is of version %d, and must not be older than %d", a.at, least)
	case r.exact() && a.at != least:
		return fmt.Sprintf("it is of version %d, and must be of %d", a.at, least)
	}
	wrong := ""
	for _, n := range r.parts(a.at, h) {
		if wrong = r.judgeState(a, h.state(n)); wrong == "" {
			break
		}
	}
	if wrong == "" && a.token != "" {
		r.state = pageState{token: a.token, after: poddata.Prefix + a.names[len(a.names)-1], page: a.at}
	}
	return wrong
}

// parts returns the numbers of changes that a state at the version may have.
func (r *readRule) parts(rv uint64, h *history) []int {
	n := h.whole(rv)
	parts := []int{n}
	for r.anyPart && n > 0 && h.changes[n-1].rv == rv {
		n--
		parts = append(parts, n)
	}
	return parts
}

func (r *readRule) judgeState(a answer, state map[string]*object) string {
	var want []string
	for _, o := range r.selection.of(state) {
		if o.key > r.after {
			want = append(want, o.text)
		}
	}
	// A page that is not the last one has a token. The last one may have one as long
	// as there are other objects in its range.
	more, remaining := false, 0
	if limit := r.limitOf(a); limit > 0 && len(want) >= limit {
		more = len(want) > limit
		want = want[:limit]
		if len(a.names) > 0 {
			remaining = r.selection.inScope(state, poddata.Prefix+a.names[len(a.names)-1])
		}
	}
	switch {
	case !slices.Equal(want, a.items):
		return fmt.Sprintf("the model has %s", answer{items: want})
	case a.token == "" && more, a.token != "" && remaining == 0:
		return fmt.Sprintf("there being more selected objects is %v, and %d remain in its range", more, remaining)
	case a.token != "" && r.selection.predicate.Empty() && a.remaining != int64(remaining):
		return fmt.Sprintf("it says that %d remain, and %d do", a.remaining, remaining)
	}
	return ""
}

// limitOf returns the limit that the answer must keep to. The cache ignores one at
// resourceVersion "0"; storage, which answers while the cache is not ready, does not.
func (r *readRule) limitOf(a answer) int {
	if r.asked == "0" && a.token == "" {
		return 0
	}
	return r.limit
}

// judgeGet wants a state of the object that it had at the version asked for, or
// later.
func (r *readRule) judgeGet(a answer, h *history) string {
	got := "not found"
	if a.err == nil {
		got = a.items[0]
	}
	least := h.whole(r.least())
	if r.anyPart {
		least = h.whole(max(1, r.least()) - 1)
	}
	var had []string
	after := h.object(r.name, least)
	for n := least; ; n++ {
		state := "not found"
		if after != nil {
			state = after.text
		}
		if state == got {
			return ""
		}
		had = append(had, state)
		for n < len(h.changes) && h.changes[n].name() != r.name {
			n++
		}
		if n == len(h.changes) {
			break
		}
		after = h.changes[n].after
	}
	return fmt.Sprintf("since version %d the object was %s", r.least(), strings.Join(slices.Compact(had), ", "))
}

// mayFail reports whether an error is right though nothing is wrong.
func (r *readRule) mayFail(err error, h *history) bool {
	switch text := errorText(err); {
	case r.gone:
		return true
	case r.stopped && (strings.HasPrefix(text, "429") || text == "cancelled"):
		return true // if not, it was answered before
	case storage.IsTooLargeResourceVersion(err), strings.HasPrefix(text, "504"):
		return r.from > r.current || r.anyPart
	case strings.HasPrefix(text, "410"):
		return r.exact() && r.least() < h.compacted
	}
	return false
}
