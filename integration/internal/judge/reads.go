// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"maps"
	"sort"
	"time"
)

// Write is one attempt to write.
type Write struct {
	Key     string
	Deletes bool
	Content string // of an attempt of its own
	// Done is when it was acknowledged; zero: what became of it is not known.
	Done time.Time
	// RV is what the acknowledgement said; of a deletion, which says none, it is
	// what the last acknowledged write of the key said.
	RV int64
}

// Read is one answer.
type Read struct {
	Kind  string
	Begun time.Time
	// Fresh: the read is consistent. Least is what it must reach at least.
	Fresh bool
	Least int64
	// Key is what a GET asked for; of a LIST it is empty, and RV is the list's.
	Key   string
	RV    int64
	Items map[string]Item
	// Selection is what a LIST asked for.
	Selection Selection
}

// Writes holds acknowledged writes to be there, and every write to be there
// once at most.
func Writes(h *History, writes []Write) (out Violations) {
	seen := map[string]int64{}
	for _, c := range h.changes {
		if c.Deleted {
			continue
		}
		if first, again := seen[c.Content]; again {
			out.Add(Once, "the write %s was applied at %d and again at %d", c.Content, first, c.Rev)
		}
		seen[c.Content] = c.Rev
	}
	for _, w := range writes {
		if w.Done.IsZero() || w.Deletes {
			continue
		}
		if c := h.at(w.Key, w.RV); c == nil || c.Content != w.Content {
			out.Add(Durable, "the write %s of %s was acknowledged at %d, where etcd has %+v", w.Content, w.Key, w.RV, c)
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

func floors(h *History, writes []Write) []floor {
	var out []floor
	for _, w := range writes {
		if w.Done.IsZero() {
			continue
		}
		f := floor{done: w.Done, key: w.Key, rev: w.RV}
		if w.Deletes {
			f.rev = h.deletedAfter(w.Key, w.RV)
		}
		out = append(out, f)
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].done.Before(out[j].done) })
	return out
}

// deletedAfter is the first deletion of key above rev; 0 if there is none.
func (h *History) deletedAfter(key string, rev int64) int64 {
	for _, c := range h.after(rev) {
		if c.Key == key && c.Deleted {
			return c.Rev
		}
	}
	return 0
}

// Reads holds every answer to be a state that etcd had, at the version that
// it names, and no older than the read allows.
func Reads(h *History, writes []Write, reads []Read) (out Violations) {
	out = append(out, age(floors(h, writes), reads)...)
	lists := make([]Read, 0, len(reads))
	for _, r := range reads {
		if r.Key == "" {
			lists = append(lists, r)
		} else {
			out = append(out, object(h, r)...)
		}
	}
	sort.SliceStable(lists, func(i, j int) bool { return lists[i].RV < lists[j].RV })
	revs := make([]int64, len(lists))
	for i := range lists {
		revs[i] = lists[i].RV
	}
	h.each(revs, func(i int, state map[string]*Change) {
		if want := lists[i].Selection.of(state); !maps.Equal(want, lists[i].Items) {
			out.Add(State, "%s of %v at %d: it has %v, where etcd had %v", lists[i].Kind, lists[i].Selection, lists[i].RV, lists[i].Items, want)
		}
	})
	return out
}

// age sorts reads by their begin and walks the floors along.
func age(floors []floor, reads []Read) (out Violations) {
	reads = append([]Read(nil), reads...)
	sort.SliceStable(reads, func(i, j int) bool { return reads[i].Begun.Before(reads[j].Begun) })
	next, all, each := 0, int64(0), map[string]int64{}
	for _, r := range reads {
		for ; next < len(floors) && floors[next].done.Before(r.Begun); next++ {
			f := floors[next]
			all, each[f.key] = max(all, f.rev), max(each[f.key], f.rev)
		}
		least := r.Least
		if r.Fresh {
			least = max(least, all)
			if r.Key != "" {
				least = max(r.Least, each[r.Key])
			}
		}
		if r.RV < least {
			out.Add(Fresh, "%s %s: the answer is of %d, and %d had been reached before the read began", r.Kind, r.Key, r.RV, least)
		}
	}
	return out
}

// object looks for what a GET returned. Its rv is the object's; of an object
// that was not found it is the last revision at which there was none.
func object(h *History, r Read) (out Violations) {
	got, found := r.Items[r.Key]
	if !found {
		return nil
	}
	if c := h.at(r.Key, got.RV); c.object() && c.item() == got {
		return nil
	}
	out.Add(State, "%s %s: it is %v, which etcd never had", r.Kind, r.Key, got)
	return out
}

// Absent sets the rv of each GET that found nothing to the last revision up to
// which its key may have been absent.
func Absent(h *History, reads []Read) {
	for i := range reads {
		r := &reads[i]
		if r.Key == "" || len(r.Items) > 0 {
			continue
		}
		r.RV = 0
		last := h.latest[r.Key]
		if !last.object() {
			r.RV = h.rev
			continue
		}
		// Absent until just before the object that there is now was created.
		for last.Before.object() {
			last = last.Before
		}
		r.RV = last.Rev - 1
	}
}
