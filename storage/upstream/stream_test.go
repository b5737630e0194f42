// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// streamAt returns a watch at a version whose goroutine does not run.
func streamAt(t *testing.T, at uint64, expires bool) *stream {
	t.Helper()
	counters, err := newMetrics(nil, pods.GroupResource())
	require.NoError(t, err)
	s := &Store{config: Config{Resource: pods, Expires: expires, NewFunc: poddata.New}, metrics: counters}
	return &stream{
		store: s, ctx: t.Context(), cancel: func() {}, progress: true, upstream: watch.NewFakeWithChanSize(10, false), result: make(chan watch.Event, 10),
		at: at, complete: true, ordered: true,
	}
}

// eventOf makes an event of "DELETED 7".
func eventOf(t *testing.T, text string) watch.Event {
	t.Helper()
	kind, version, _ := strings.Cut(text, " ")
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x", ResourceVersion: version}}
	return watch.Event{Type: watch.EventType(kind), Object: pod}
}

// received returns what a watch has sent, as texts.
func received(t *testing.T, w *stream) (texts []string) {
	t.Helper()
	for len(w.result) > 0 {
		event := <-w.result
		texts = append(texts, fmt.Sprintf("%s %d", event.Type, rvOf(t, event.Object)))
	}
	return texts
}

// Each event is followed by a bookmark if it is surely the last one at its version, and no
// bookmark goes back or ends a version early.
func TestBookmarksOfAWatch(t *testing.T) {
	for name, c := range map[string]struct {
		expires  bool
		in, want []string
		at       uint64
		complete bool
		leases   bool
	}{
		"a change":              {false, []string{"MODIFIED 7"}, []string{"MODIFIED 7", "BOOKMARK 7"}, 7, true, false},
		"a deletion":            {false, []string{"DELETED 7"}, []string{"DELETED 7", "BOOKMARK 7"}, 7, true, false},
		"a change of leases":    {true, []string{"MODIFIED 7"}, []string{"MODIFIED 7", "BOOKMARK 7"}, 7, true, false},
		"a deletion of leases":  {true, []string{"DELETED 7"}, []string{"DELETED 7"}, 7, false, false},
		"a bookmark between":    {true, []string{"DELETED 7", "BOOKMARK 7", "DELETED 7"}, []string{"DELETED 7", "DELETED 7"}, 7, false, true},
		"a bookmark after":      {true, []string{"DELETED 7", "BOOKMARK 8"}, []string{"DELETED 7", "BOOKMARK 8"}, 8, true, false},
		"a bookmark before":     {false, []string{"BOOKMARK 4"}, nil, 5, true, false},
		"a bookmark of now":     {false, []string{"BOOKMARK 5"}, []string{"BOOKMARK 5"}, 5, true, false},
		"a late bookmark":       {false, []string{"MODIFIED 7", "BOOKMARK 6"}, []string{"MODIFIED 7", "BOOKMARK 7"}, 7, true, false},
		"an old deletion":       {false, []string{"MODIFIED 7", "DELETED 3"}, []string{"MODIFIED 7", "BOOKMARK 7", "DELETED 3"}, 7, true, false},
		"leases without a word": {false, []string{"DELETED 7", "DELETED 7", "DELETED 8"}, []string{"DELETED 7", "BOOKMARK 7", "DELETED 7", "DELETED 8"}, 8, false, true},
		"two changes":           {false, []string{"MODIFIED 7", "MODIFIED 7"}, []string{"MODIFIED 7", "BOOKMARK 7", "MODIFIED 7", "BOOKMARK 7"}, 7, true, false},
		"an error":              {false, []string{"ERROR 7", "MODIFIED 8"}, []string{"ERROR 7"}, 5, true, false},
		"no number":             {false, []string{"MODIFIED x", "MODIFIED 8"}, []string{"ERROR 0"}, 5, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := streamAt(t, 5, c.expires)
			var got []string
			for _, text := range c.in {
				goesOn := w.passAll(eventOf(t, text))
				for len(w.result) > 0 {
					event := <-w.result
					version := uint64(0)
					if pod, ok := event.Object.(*example.Pod); ok {
						version = rvOf(t, pod)
					}
					got = append(got, fmt.Sprintf("%s %d", event.Type, version))
				}
				if !goesOn {
					break
				}
			}
			require.Equal(t, c.want, got)
			require.Equal(t, []any{c.at, c.complete, c.leases}, []any{w.at, w.complete, w.store.leases.Load()})
		})
	}
}

// Before the end of the initial events no version is complete.
func TestBookmarksOfAWatchThatBegins(t *testing.T) {
	w := streamAt(t, 0, false)
	w.ordered = false
	sends := true
	w.query.options.SendInitialEvents = &sends
	for _, text := range []string{"ADDED 9", "ADDED 3", "BOOKMARK 9"} {
		require.True(t, w.passAll(eventOf(t, text)))
		require.False(t, w.ordered)
	}
	end := eventOf(t, "BOOKMARK 9")
	end.Object.(*example.Pod).Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	require.True(t, w.passAll(end))
	require.True(t, w.ordered)
	require.True(t, w.passAll(eventOf(t, "ADDED 10")))
	require.Equal(t, []string{"ADDED 9", "ADDED 3", "BOOKMARK 9", "BOOKMARK 9", "ADDED 10", "BOOKMARK 10"}, received(t, w))
}

// A proof counts once the watch has every event that the proof has seen.
func TestProofsAreAppliedInTime(t *testing.T) {
	for name, c := range map[string]struct {
		p        proof
		complete bool
		events   int
		want     []string
		kept     bool
	}{
		"no event":                     {proof{upTo: 9, last: 5}, true, 0, []string{"BOOKMARK 9"}, false},
		"at the version":               {proof{upTo: 5, last: 5}, true, 0, []string{"BOOKMARK 5"}, false},
		"the watch is further":         {proof{upTo: 4, last: 4}, true, 0, nil, false},
		"an event is on its way":       {proof{upTo: 9, last: 6, events: 1}, true, 0, nil, true},
		"a deletion is on its way":     {proof{upTo: 9, last: 5, events: 2}, false, 1, nil, true},
		"all deletions have come":      {proof{upTo: 9, last: 5, events: 2}, false, 2, []string{"BOOKMARK 9"}, false},
		"a complete version has one":   {proof{upTo: 9, last: 5, events: 2}, true, 1, []string{"BOOKMARK 9"}, false},
		"further than the last event":  {proof{upTo: 9, last: 4, events: 3}, true, 0, []string{"BOOKMARK 9"}, false},
		"incomplete, and further":      {proof{upTo: 9, last: 4, events: 3}, false, 1, []string{"BOOKMARK 9"}, false},
		"incomplete, at the proof's":   {proof{upTo: 5, last: 5, events: 1}, false, 1, []string{"BOOKMARK 5"}, false},
		"incomplete, before the proof": {proof{upTo: 5, last: 5, events: 2}, false, 1, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := streamAt(t, 5, true)
			w.complete, w.events, w.proven = c.complete, c.events, &c.p
			require.True(t, w.apply())
			require.Equal(t, c.want, received(t, w))
			require.Equal(t, c.kept, w.proven != nil)
			if c.want != nil {
				require.Equal(t, []any{c.p.upTo, 0, true}, []any{w.at, w.events, w.complete})
			}
		})
	}
}

// What a second watch shows: its last event, how many there are at that version, and up to
// where there is no other.
func TestWhatAProofShows(t *testing.T) {
	many := make([]string, proofEvents+1)
	for i := range many {
		many[i] = "MODIFIED " + strconv.Itoa(6+i)
	}
	for name, c := range map[string]struct {
		expires bool
		events  []string
		want    proof
	}{
		"nothing":                       {false, nil, proof{err: errNoBookmark}},
		"a bookmark":                    {false, []string{"BOOKMARK 9"}, proof{upTo: 9, last: 5}},
		"an event":                      {false, []string{"ADDED 7"}, proof{upTo: 7, last: 7, events: 1}},
		"an event and a bookmark":       {false, []string{"ADDED 7", "BOOKMARK 9", "ADDED 10"}, proof{upTo: 9, last: 7, events: 1}},
		"deletions in one revision":     {true, []string{"ADDED 6", "DELETED 7", "DELETED 7", "BOOKMARK 9"}, proof{upTo: 9, last: 7, events: 2}},
		"a bookmark between deletions":  {true, []string{"DELETED 7", "BOOKMARK 7", "DELETED 7"}, proof{err: errIncomplete}},
		"a deletion may not be last":    {true, []string{"DELETED 7"}, proof{err: errNoBookmark}},
		"a deletion is last":            {false, []string{"DELETED 7"}, proof{upTo: 7, last: 7, events: 1}},
		"a change is last":              {true, []string{"DELETED 6", "MODIFIED 7"}, proof{upTo: 7, last: 7, events: 1}},
		"a change, and a bookmark":      {true, []string{"MODIFIED 7", "BOOKMARK 7"}, proof{upTo: 7, last: 7, events: 1}},
		"a deletion at an old version":  {false, []string{"MODIFIED 7", "DELETED 3", "BOOKMARK 9"}, proof{err: errIncomplete}},
		"more events than a proof sees": {false, many, proof{err: errFarBehind}},
	} {
		t.Run(name, func(t *testing.T) {
			s := streamAt(t, 5, c.expires).store
			fake := watch.NewFakeWithChanSize(len(c.events), false)
			for _, text := range c.events {
				event := eventOf(t, text)
				fake.Action(event.Type, event.Object)
			}
			fake.Stop()
			got := s.shown(context.Background(), fake, 5)
			if c.want.err != nil {
				require.ErrorIs(t, got.err, c.want.err)
				return
			}
			require.Equal(t, c.want, got)
		})
	}
}

// A proof that shows nothing new counts only for a watch whose version is complete, and one
// that can't be finished counts against nobody.
func TestJudgement(t *testing.T) {
	for name, c := range map[string]struct {
		p        proof
		complete bool
		proven   bool
		vain     int
	}{
		"held":                        {proof{upTo: 9, last: 7, told: 9}, true, true, 0},
		"held, too old":               {proof{upTo: 8, last: 7, told: 9}, true, true, 1},
		"nothing new":                 {proof{err: errNothingNew}, true, true, 0},
		"nothing new, and incomplete": {proof{err: errNothingNew}, false, false, 0},
		"incomplete":                  {proof{err: errIncomplete}, true, false, 0},
		"no bookmark":                 {proof{err: errNoBookmark}, true, false, 1},
		"far behind":                  {proof{err: errFarBehind}, true, false, 0},
		"no answer":                   {proof{err: context.DeadlineExceeded}, true, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := streamAt(t, 5, true)
			w.complete = c.complete
			w.judge(c.p)
			require.Equal(t, c.proven, w.proven != nil)
			require.Equal(t, c.vain, w.store.mu.vain)
		})
	}
}
