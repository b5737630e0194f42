// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// A timeline is a source whose contents at any resourceVersion follow from the
// number alone: there is one event at each, it concerns the key rv modulo
// timelineKeys, and each key is added, modified, deleted, added ... in turn.
// Any snapshot can thus be checked against its own resourceVersion, by readers
// that know nothing of the writer.
//
// A source that is restored from a backup is another generation: its elements'
// values tell which.
const timelineKeys = 64

// timelineStart is a resourceVersion at which no key exists.
const timelineStart = 3*timelineKeys - 1

func timelineKey(rv uint64) string { return fmt.Sprintf("/r/%02d", rv%timelineKeys) }

func timelineType(rv uint64) watchcache.EventType {
	return watchcache.EventType(1 + rv/timelineKeys%3)
}

func timelineElement(rv uint64, generation int) *watchcache.Element {
	return element(timelineKey(rv), rv, strconv.Itoa(generation))
}

func timelineChange(rv uint64, generation int) watchcache.Change {
	return watchcache.Change{
		Type: timelineType(rv), Element: timelineElement(rv, generation), RV: rv, Received: int64(rv) * int64(time.Second), Whole: true,
	}
}

// lastWrites are the rvs of the elements that exist at rv, in key order.
func lastWrites(rv uint64) []uint64 {
	var out []uint64
	for k := range uint64(timelineKeys) {
		last := rv - (rv+timelineKeys-k)%timelineKeys
		if timelineType(last) != watchcache.Deleted {
			out = append(out, last)
		}
	}
	return out
}

func timelineList(rv uint64, generation int) []*watchcache.Element {
	var out []*watchcache.Element
	for _, last := range lastWrites(rv) {
		out = append(out, timelineElement(last, generation))
	}
	return out
}

// checkTimeline compares a snapshot with its resourceVersion, and returns the
// generation that all its elements are of, and whether it has any.
func checkTimeline(t *testing.T, s *watchcache.Snapshot) (generation int, ok bool) {
	t.Helper()
	want := lastWrites(s.RV())
	i := 0
	var value string
	s.Range("", "", func(e *watchcache.Element) bool {
		if i >= len(want) || e.RV != want[i] || (i > 0 && e.Labels["value"] != value) {
			t.Errorf("snapshot at %d: %s, expected one from %v of generation %q", s.RV(), show(e), want[min(i, len(want)):], value)
			return false
		}
		value = e.Labels["value"]
		i++
		return true
	})
	if i != len(want) || s.Len() != i || len(s.All()) != i || s.Count("", "") != i || s.Count("/r/", timelineKey(0)) != i {
		t.Errorf("snapshot at %d: %d elements, expected %d", s.RV(), i, len(want))
	}
	if i == 0 {
		return 0, false
	}
	for _, index := range []string{"value", "late"} {
		byValue := 0
		ok := s.RangeIndex(index, value, "", "", func(e *watchcache.Element) bool {
			if e != s.Get(e.Key) {
				t.Errorf("snapshot at %d: %s in the index %s", s.RV(), show(e), index)
			}
			byValue++
			return true
		})
		if ok && byValue != i {
			t.Errorf("snapshot at %d: %d elements in the index %s, %d by key", s.RV(), byValue, index, i)
		}
	}
	generation, err := strconv.Atoi(value)
	require.NoError(t, err)
	return generation, true
}

// timeline is one writer and its readers.
type timeline struct {
	t     *testing.T
	state *watchcache.State
	done  atomic.Bool
	// reads counts what each kind of reader has got, so that a run in which
	// they got nothing fails.
	reads struct{ latest, at, get, since, held, late atomic.Int64 }
}

// write applies events at full speed; between two generations the source goes
// back by up to 100 or forward over a gap.
func (tl *timeline) write(generations, events int) {
	rv := uint64(timelineStart)
	for generation := range generations {
		switch generation % 3 {
		case 1:
			rv -= min(rv-timelineStart, 100)
		case 2:
			rv += 33
		}
		tl.state.Replace(timelineList(rv, generation), rv)
		for range events {
			rv++
			if _, err := tl.state.Apply(timelineChange(rv, generation)); err != nil {
				tl.t.Error(err)
				return
			}
			if rv%50 == 0 {
				tl.state.Trim(int64(rv) * int64(time.Second))
			}
			if rv%1000 == 0 {
				tl.state.Compacted(rv - 100)
			}
		}
	}
}

// pause lets other goroutines run: on few processors readers that never rest
// would make the writer wait for the end of their time slices. pause reports
// whether the writer has ended, so that the next round is the reader's last.
func (tl *timeline) pause() (last bool) {
	runtime.Gosched()
	return tl.done.Load()
}

// readLatest requires that the resourceVersions it reads never fall.
func (tl *timeline) readLatest() {
	generation, rv := 0, uint64(0)
	for last := false; !last; {
		last = tl.pause()
		s := tl.state.Latest()
		g, ok := checkTimeline(tl.t, s)
		if ok && (g < generation || g == generation && s.RV() < rv) {
			tl.t.Errorf("generation %d at %d after generation %d at %d", g, s.RV(), generation, rv)
			return
		}
		if ok {
			generation, rv = g, s.RV()
		}
		tl.reads.latest.Add(1)
	}
}

// readAt asks for older versions, and never gets those of a generation before
// the one that it has seen by Get.
func (tl *timeline) readAt(back uint64) {
	for last := false; !last; {
		last = tl.pause()
		generation, rv := tl.generation()
		for _, older := range []uint64{rv - back, rv - rv%8 - back, rv, rv + 1} {
			s, err := tl.state.At(older)
			if err != nil {
				continue
			}
			if s.RV() != older {
				tl.t.Errorf("the snapshot at %d says that it is at %d", older, s.RV())
				return
			}
			g, ok := checkTimeline(tl.t, s)
			if ok && g < generation {
				tl.t.Errorf("at %d: generation %d after %d was seen", older, g, generation)
				return
			}
			tl.reads.at.Add(1)
		}
		if tl.t.Failed() {
			return
		}
	}
}

// generation is that of the first key that Get finds, and the rv it was at.
func (tl *timeline) generation() (generation int, at uint64) {
	for k := range uint64(timelineKeys) {
		if e, rv := tl.state.Get(timelineKey(k)); e != nil {
			generation, _ = strconv.Atoi(e.Labels["value"])
			return generation, rv
		}
	}
	return 0, tl.state.RV()
}

func (tl *timeline) readGet() {
	for i, last := uint64(0), false; !last; i++ {
		last = tl.pause()
		e, rv := tl.state.Get(timelineKey(i))
		k := i % timelineKeys
		want := rv - (rv+timelineKeys-k)%timelineKeys
		exists := timelineType(want) != watchcache.Deleted
		if exists != (e != nil) || (exists && e.RV != want) {
			tl.t.Errorf("get %s at %d: %v, expected one from %d: %v", timelineKey(i), rv, e, want, exists)
			return
		}
		tl.reads.get.Add(1)
		if stats := tl.state.Stats(); stats.Next-stats.Oldest != watchcache.Position(stats.WindowEvents) || stats.OldestRV > stats.RV {
			tl.t.Errorf("stats: %+v", stats)
			return
		}
	}
}

// readSince follows the events as a dispatcher or a watcher does: each once,
// in order, without a gap (W3). dispatch makes it the dispatcher.
func (tl *timeline) readSince(room int, dispatch bool) {
	var next watchcache.Position
	var rv uint64
	buf := make([]*watchcache.Event, room)
	for last := false; !last; {
		last = tl.pause()
		n, through, err := tl.state.Since(next, buf)
		if err != nil {
			// Begin again from a snapshot.
			s := tl.state.Latest()
			next, rv = s.Next(), s.RV()
			continue
		}
		for i, e := range buf[:n] {
			if e.Position != next+watchcache.Position(i) || e.RV != rv+1 || e.Element.RV != e.RV ||
				e.Type != timelineType(e.RV) || (e.Previous == nil) != (e.Type == watchcache.Added) {
				tl.t.Errorf("after %d, at position %d: %s", rv, next+watchcache.Position(i), showEvent(e))
				return
			}
			rv++
		}
		if through != rv {
			tl.t.Errorf("through %d with the event at %d as the last", through, rv)
			return
		}
		next += watchcache.Position(n)
		if dispatch {
			tl.state.Dispatched(next)
		}
		tl.reads.since.Add(int64(n))
	}
}

// hold checks snapshots again long after they were taken (W5).
func (tl *timeline) hold() {
	var held []*watchcache.Snapshot
	for last := false; !last; {
		last = tl.pause()
		s := tl.state.Latest()
		if len(held) == 0 || s != held[len(held)-1] {
			held = append(held, s)
		}
		if len(held) == 32 || last {
			for _, s := range held {
				checkTimeline(tl.t, s)
				tl.reads.held.Add(1)
			}
			held = held[:0]
		}
	}
}

// One writer at full speed, and readers of every kind.
//
// Regression 48: trees are cloned only where nobody else can be, by the readers of
// snapshots, of the trees themselves and of the indexes. The race detector judges.
func TestReadersAndWriter(t *testing.T) {
	tl := &timeline{t: t, state: watchcache.New(watchcache.Config{
		History: 300 * time.Second, WindowBytes: 1 << 40, MinEvents: 10, Indexes: indexes,
	})}
	tl.state.Replace(nil, timelineStart)
	var readers sync.WaitGroup
	for _, read := range []func(){
		tl.readLatest, tl.readGet, tl.hold, tl.addIndex,
		func() { tl.readAt(3) }, func() { tl.readAt(50) },
		func() { tl.readSince(100, true) }, func() { tl.readSince(1, false) }, func() { tl.readSince(17, false) },
	} {
		readers.Go(read)
	}
	tl.write(90, 300)
	tl.done.Store(true)
	readers.Wait()
	for name, reads := range map[string]*atomic.Int64{
		"latest": &tl.reads.latest, "at": &tl.reads.at, "get": &tl.reads.get, "since": &tl.reads.since, "held": &tl.reads.held, "late": &tl.reads.late,
	} {
		require.Positive(t, reads.Load(), name)
		t.Logf("%s: %d", name, reads.Load())
	}
}

// addIndex adds an index, which snapshots have from then on, lists or not, and drops it.
func (tl *timeline) addIndex() {
	for last := false; !last; {
		last = tl.pause()
		if _, err := tl.state.AddIndex(watchcache.Index{Name: "late", Values: indexes[0].Values}, 1<<40); err != nil {
			if !errors.Is(err, watchcache.ErrExpired) {
				tl.t.Error(err)
			}
			continue
		}
		for range 20 {
			tl.pause()
			s := tl.state.Latest()
			if !s.HasIndex("late") {
				tl.t.Errorf("the snapshot at %d does not have the index", s.RV())
			}
			checkTimeline(tl.t, s)
			tl.reads.late.Add(1)
		}
		tl.state.DropIndex("late")
		if tl.state.IndexBytes("late") != 0 {
			tl.t.Error("the index has bytes after it was dropped")
		}
	}
}

// A snapshot from before a Replace is never given to a reader that has seen
// the state after it, also in the moment in which Replace ends.
func TestNoSnapshotFromBeforeReplace(t *testing.T) {
	const base = timelineStart + 10
	s := watchcache.New(roomy)
	tl := &timeline{t: t, state: s}
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			for !tl.pause() && !t.Failed() {
				generation, _ := tl.generation()
				for rv := uint64(base + 1); rv < base+4; rv++ {
					snapshot, err := s.At(rv)
					if err != nil {
						continue
					}
					if g, ok := checkTimeline(t, snapshot); ok && g < generation {
						t.Errorf("at %d: generation %d after %d was seen", rv, g, generation)
					}
				}
			}
		})
	}
	for generation := range 2500 {
		// The list of every other generation is too new for the versions that
		// are asked for: these are in the window of the one before.
		listed := uint64(base + generation%2*20)
		s.Replace(timelineList(listed, generation), listed)
		for rv := listed + 1; rv < listed+6; rv++ {
			if _, err := s.Apply(timelineChange(rv, generation)); err != nil {
				t.Fatal(err)
			}
		}
		if t.Failed() {
			break
		}
	}
	tl.done.Store(true)
	readers.Wait()
}
