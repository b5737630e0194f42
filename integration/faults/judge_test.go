// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"maps"
	"sort"
	"time"
)

// violations collects what must not be, each with an example.
type violations []string

func (v *violations) add(format string, args ...any) { *v = append(*v, fmt.Sprintf(format, args...)) }

// write is one attempt to write.
type write struct {
	key     string
	deletes bool
	content string // of an attempt of its own
	// done is when it was acknowledged; zero: what became of it is not known.
	done time.Time
	// rv is what the acknowledgement said; of a deletion, which says none, it is
	// what the last acknowledged write of the key said.
	rv int64
}

// read is one answer.
type read struct {
	kind  string
	begun time.Time
	// fresh: the read is consistent. least is what it must reach at least.
	fresh bool
	least int64
	// key is what a GET asked for; of a LIST it is empty, and rv is the list's.
	key   string
	rv    int64
	items map[string]item
}

// segment is what a watch delivered from one resourceVersion on, without a break.
type segment struct {
	from, to int64 // to: the last resourceVersion seen, bookmarks included
	events   []delivered
	// disorder is an event, or a bookmark, that came out of order.
	disorder []string
}

// judgeWatch compares what a watch delivered with what it must have. Above upTo
// nothing is asked.
func judgeWatch(h *history, s selection, segments []segment, upTo int64) (out violations) {
	for _, segment := range segments {
		for _, disorder := range segment.disorder {
			out.add("watch of %v: %s", s, disorder)
		}
		want, got := h.expect(s, segment.from, min(segment.to, upTo)), segment.events
		for len(got) > 0 && got[len(got)-1].rv > upTo {
			got = got[:len(got)-1]
		}
		for i := range max(len(want), len(got)) {
			switch {
			case i >= len(got):
				out.add("watch of %v from %d: %d of %d events are missing up to %d, the first is %v", s, segment.from, len(want)-i, len(want), segment.to, want[i])
			case i >= len(want):
				out.add("watch of %v from %d: %d events too many, the first is %v", s, segment.from, len(got)-i, got[i])
			case got[i] != want[i]:
				out.add("watch of %v from %d: event %d is %v, not %v", s, segment.from, i, got[i], want[i])
			default:
				continue
			}
			break
		}
	}
	return out
}

// judgeWrites holds acknowledged writes to be there, and every write to be there
// once at most.
func judgeWrites(h *history, writes []write) (out violations) {
	at, seen := map[int64]*change{}, map[string]int64{}
	for _, c := range h.changes {
		at[c.rev] = c
		if c.deleted {
			continue
		}
		if first, again := seen[c.content]; again {
			out.add("the write %s was applied at %d and again at %d", c.content, first, c.rev)
		}
		seen[c.content] = c.rev
	}
	for _, w := range writes {
		if w.done.IsZero() || w.deletes {
			continue
		}
		if c := at[w.rv]; c == nil || c.key != w.key || c.content != w.content {
			out.add("the write %s of %s was acknowledged at %d, where etcd has %+v", w.content, w.key, w.rv, c)
		}
	}
	return out
}

// floor is the revision that a consistent read must reach: for each key and
// over all of them, by the time of its acknowledgement.
type floor struct {
	done time.Time
	key  string
	rev  int64
}

func floors(h *history, writes []write) []floor {
	var out []floor
	for _, w := range writes {
		if w.done.IsZero() {
			continue
		}
		f := floor{done: w.done, key: w.key, rev: w.rv}
		if w.deletes {
			f.rev = h.deletedAfter(w.key, w.rv)
		}
		out = append(out, f)
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].done.Before(out[j].done) })
	return out
}

// deletedAfter is the first deletion of key above rev; 0 if there is none.
func (h *history) deletedAfter(key string, rev int64) int64 {
	for _, c := range h.changes {
		if c.rev > rev && c.key == key && c.deleted {
			return c.rev
		}
	}
	return 0
}

// judgeReads holds every answer to be a state that etcd had, at the version that
// it names, and no older than the read allows.
func judgeReads(h *history, writes []write, reads []read) (out violations) {
	out = append(out, judgeAge(floors(h, writes), reads)...)
	lists := make([]read, 0, len(reads))
	for _, r := range reads {
		if r.key == "" {
			lists = append(lists, r)
		} else {
			out = append(out, judgeObject(h, r)...)
		}
	}
	sort.SliceStable(lists, func(i, j int) bool { return lists[i].rv < lists[j].rv })
	revs := make([]int64, len(lists))
	for i := range lists {
		revs[i] = lists[i].rv
	}
	h.each(revs, func(i int, state map[string]item) {
		if !maps.Equal(state, lists[i].items) {
			out.add("%s at %d: it has %v, where etcd had %v", lists[i].kind, lists[i].rv, lists[i].items, state)
		}
	})
	return out
}

// judgeAge sorts reads by their begin and walks the floors along.
func judgeAge(floors []floor, reads []read) (out violations) {
	reads = append([]read(nil), reads...)
	sort.SliceStable(reads, func(i, j int) bool { return reads[i].begun.Before(reads[j].begun) })
	next, all, each := 0, int64(0), map[string]int64{}
	for _, r := range reads {
		for ; next < len(floors) && floors[next].done.Before(r.begun); next++ {
			f := floors[next]
			all, each[f.key] = max(all, f.rev), max(each[f.key], f.rev)
		}
		least := r.least
		if r.fresh {
			least = max(least, all)
			if r.key != "" {
				least = max(r.least, each[r.key])
			}
		}
		if r.rv < least {
			out.add("%s %s: the answer is of %d, and %d had been reached before the read began", r.kind, r.key, r.rv, least)
		}
	}
	return out
}

// judgeObject looks for what a GET returned. Its rv is the object's; of an object
// that was not found it is the last revision at which there was none.
func judgeObject(h *history, r read) (out violations) {
	got, found := r.items[r.key]
	if !found {
		return nil
	}
	for _, c := range h.changes {
		if c.rev == got.rv && c.key == r.key && !c.deleted && c.content == got.content {
			return nil
		}
	}
	out.add("%s %s: it is %v, which etcd never had", r.kind, r.key, got)
	return out
}

// absent sets the rv of each GET that found nothing to the last revision up to
// which its key may have been absent.
func absent(h *history, reads []read) {
	for i := range reads {
		r := &reads[i]
		if r.key == "" || len(r.items) > 0 {
			continue
		}
		r.rv = 0
		last := h.latest[r.key]
		if !last.object() {
			r.rv = h.rev
			continue
		}
		// Absent until just before the object that there is now was created.
		for last.before.object() {
			last = last.before
		}
		r.rv = last.rev - 1
	}
}
