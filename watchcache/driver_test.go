// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// driver does the same to a State and to the model, and compares them.
type driver struct {
	t     *rapid.T
	state *watchcache.State
	model *model
	holds []hold
	// whole: the source does not tell where a resourceVersion ends.
	whole bool
	// late: there is an index of that name, which was added.
	late bool
	// reader is a watcher that reads the window to its end from time to time.
	reader watchcache.Position
}

// index adds another index by value, or drops it.
func (d *driver) index() {
	if d.late = !d.late; !d.late {
		d.state.DropIndex("late")
		return
	}
	late := watchcache.Index{Name: "late", Values: indexes[0].Values}
	_, err := d.state.AddIndex(late, -1)
	d.require().ErrorIs(err, watchcache.ErrTooLarge)
	most, _ := d.state.AddIndex(late, -1)
	bytes, err := d.state.AddIndex(late, most)
	d.require().NoError(err)
	d.require().Equal(d.state.IndexBytes("late"), bytes)
}

// hold is a snapshot taken earlier, with the contents that it had.
type hold struct {
	snapshot *watchcache.Snapshot
	version  version
	next     watchcache.Position
}

// smallConfig has a window that a few dozen changes overflow in every way.
var smallConfig = watchcache.Config{History: 20 * time.Second, WindowBytes: 12_000, MinEvents: 2, Indexes: indexes}

var driverKeys = []string{"/r/ns1/a", "/r/ns1/b", "/r/ns1/c", "/r/ns11/a", "/r/ns11/b", "/r/ns2/a"}

func newDriver(tb testing.TB, t *rapid.T) *driver {
	d := &driver{t: t}
	config := smallConfig
	config.MinEvents = d.choose("MinEvents", 5)
	config.Floors, config.FloorValues = floorsByValueAndName, []int{100, 0, 1, 2}[d.choose("floor values", 4)]
	config.CeilingBytes = []int64{0, 1, 15_000, 24_000}[d.choose("ceiling", 4)]
	if d.choose("a window that never is too large", 3) == 0 {
		config.WindowBytes = 1 << 40
	}
	d.whole = d.choose("whole", 2) == 0
	d.state, d.model = watchcache.New(config), newModel(tb, config)
	return d
}

// choose returns a number in [0, n). All random choices come from here.
func (d *driver) choose(what string, n int) int { return rapid.IntRange(0, n-1).Draw(d.t, what) }

func (d *driver) require() *require.Assertions { return require.New(d.t) }

func (d *driver) element(key string, rv uint64) *watchcache.Element {
	e := element(key, rv, fmt.Sprint(d.choose("value", 3)))
	annotate(e, []string{"", "x", "y", "x y", "y y"}[d.choose("words", 5)])
	e.Size = []int64{0, 100, 3000}[d.choose("size", 3)]
	return e
}

// change makes a change with a key, type and rv of any kind: it may fit or not.
func (d *driver) change() watchcache.Change {
	rv := max(d.model.latest().rv+uint64(d.choose("rv", 6)), 1)
	if rv > 2 {
		rv -= 2
	}
	key := driverKeys[d.choose("key", len(driverKeys))]
	return watchcache.Change{Type: watchcache.EventType(1 + d.choose("type", 3)), Element: d.element(key, rv), RV: rv}
}

// fitting makes a change that fits, unless rv, which is not moved forward by
// chance, is one that the key already has.
func (d *driver) fitting() watchcache.Change {
	c := d.change()
	c.RV = d.model.latest().rv + uint64(d.choose("step", 3))
	if c.RV <= d.model.closed {
		c.RV = d.model.closed + 1
	}
	c.Element = d.element(c.Element.Key, c.RV)
	_, exists := d.model.latest().elements[c.Element.Key]
	switch {
	case !exists:
		c.Type = watchcache.Added
	case c.Type == watchcache.Added:
		c.Type = watchcache.Modified
	}
	return c
}

func (d *driver) applyChange(c watchcache.Change) {
	req := d.require()
	c.Received = d.model.now + int64(d.choose("seconds later", 4))*int64(time.Second)
	c.Whole = d.whole
	want := d.model.refuses(c)
	applied, err := d.state.Apply(c)
	if want != nil {
		if want != errApplied {
			req.ErrorIs(err, want)
		} else {
			req.NoError(err)
		}
		req.Equal(watchcache.Applied{}, applied)
		return
	}
	req.NoError(err)
	e, evicted, cut := d.model.apply(c)
	got := applied.Event
	req.Equal([]any{e.Position, e.RV, e.Type, e.Received}, []any{got.Position, got.RV, got.Type, got.Received})
	req.Same(e.Element, got.Element)
	req.Same(e.Previous, got.Previous)
	d.model.events[len(d.model.events)-1] = got
	req.Equal([]int{evicted, cut}, []int{applied.Evicted, applied.Cut})
}

// operations are what can happen to a State, by name.
func (d *driver) operations() map[string]func() {
	return map[string]func(){
		"apply": func() { d.applyChange(d.fitting()) },
		"apply anything": func() {
			d.applyChange(d.change())
		},
		"burst": func() {
			for range d.choose("events", 150) {
				d.applyChange(d.fitting())
			}
		},
		"progress":   d.progress,
		"replace":    d.replace,
		"compacted":  d.compacted,
		"dispatched": d.dispatched,
		"trim":       d.trim,
		"hold":       d.hold,
		"read":       d.read,
		"keep":       d.keep,
		"leave":      d.leave,
		"index":      d.index,
	}
}

func (d *driver) progress() {
	rv := d.model.latest().rv + uint64(d.choose("progress", 5))
	rv -= min(rv, 1)
	err := d.state.Progress(rv)
	if rv < d.model.shown {
		d.require().ErrorIs(err, watchcache.ErrBackwards)
		return
	}
	d.require().NoError(err)
	if rv >= d.model.latest().rv {
		d.model.progress(rv)
	} else {
		d.model.closed = rv
	}
}

func (d *driver) replace() {
	rv := max(d.model.latest().rv+uint64(d.choose("list at", 12)), 7) - 6
	var elements []*watchcache.Element
	for range d.choose("elements", 8) {
		own := rv - min(rv-1, uint64(d.choose("older by", 4)))
		elements = append(elements, d.element(driverKeys[d.choose("key", len(driverKeys))], own))
	}
	d.require().Equal(d.model.replace(elements, rv), d.state.Replace(elements, rv))
}

func (d *driver) compacted() {
	rv := d.model.latest().rv + uint64(d.choose("compacted", 6))
	rv -= min(rv, 4)
	d.state.Compacted(rv)
	d.model.compacted = max(d.model.compacted, rv)
}

func (d *driver) dispatched() {
	behind := watchcache.Position(d.choose("behind", 4))
	p := max(d.model.dispatched, d.model.next()-min(d.model.next(), behind))
	d.state.Dispatched(p)
	d.model.dispatched = p
}

func (d *driver) trim() {
	now := d.model.now + int64(d.choose("seconds", 15))*int64(time.Second) - int64(3*time.Second)
	applied := d.state.Trim(now)
	var want watchcache.Applied
	want.Evicted, want.Cut = d.model.trim(now)
	d.require().Equal(want, applied)
}

func (d *driver) hold() {
	snapshot := d.state.Latest()
	if d.choose("an older one", 2) == 0 {
		rv := snapshot.RV() - min(snapshot.RV(), uint64(d.choose("older by", 10)))
		older, err := d.state.At(rv)
		if err != nil {
			return
		}
		d.model.asked[rv] = true
		snapshot = older
	}
	h := hold{snapshot, d.model.at(snapshot.RV()), snapshot.Next()}
	if len(d.holds) < 6 {
		d.holds = append(d.holds, h)
	} else {
		d.holds[d.choose("instead of", len(d.holds))] = h
	}
}

func (d *driver) keep() {
	latest := d.state.Latest()
	d.state.PinSnapshot(latest)
	d.model.asked[latest.RV()] = true
}

// leave makes an event, of the window or evicted, leave a watcher's selector.
func (d *driver) leave() {
	if len(d.model.events) == 0 {
		return
	}
	// The nearer to now, the more likely to be in the window.
	i := len(d.model.events) - 1 - d.choose("event back", min(len(d.model.events), 12))
	e := d.model.events[i]
	if e.Type != watchcache.Modified {
		return
	}
	copied := element(e.Element.Key, e.RV, "left")
	copied.Size = e.Previous.Size
	got := e.DeletedView(func(*watchcache.Event) *watchcache.Element { return copied })
	if shared := d.model.left[e.Position]; shared != nil {
		d.require().Same(shared, got)
		return
	}
	d.require().Same(copied, got)
	d.model.left[e.Position] = copied
}

// read moves the reader: the reader gets every event once and in order, or
// ErrExpired (W3).
func (d *driver) read() {
	req := d.require()
	buf := make([]*watchcache.Event, d.choose("room", 40))
	n, through, err := d.state.Since(d.reader, buf)
	if d.reader < d.model.first() {
		req.ErrorIs(err, watchcache.ErrExpired)
		d.reader = d.state.Latest().Next()
		return
	}
	req.NoError(err)
	d.requireEvents(d.reader, buf[:n], len(buf), through)
	d.reader += watchcache.Position(n)
}

// requireEvents checks what Since has given from p on, with that much room.
func (d *driver) requireEvents(p watchcache.Position, got []*watchcache.Event, room int, through uint64) {
	req := d.require()
	left := d.model.events[p-d.model.start:]
	n := min(room, len(left))
	req.Len(got, n)
	for i := range got {
		req.Same(left[i], got[i])
	}
	complete := d.model.shown
	if n < len(left) {
		complete = left[n].RV - 1
	}
	req.Equal(complete, through)
}

// check compares all that can be read. whole makes it ask for every version
// that must be served and not for some of them.
func (d *driver) check(whole bool) {
	d.checkStats()
	d.checkLatest()
	d.checkVersions(whole)
	d.checkPositions()
	for _, h := range d.holds {
		d.checkSnapshot(h.snapshot, h.version, h.next)
	}
}

func (d *driver) checkStats() {
	req, m, stats := d.require(), d.model, d.state.Stats()
	req.Equal(watchcache.Stats{
		Superseded:  stats.Superseded,                                // see TestKept
		FloorValues: stats.FloorValues, FloorBytes: stats.FloorBytes, // see TestFloorsAreBounded
		RV: m.shown, OldestRV: m.dropped, Objects: len(m.latest().elements), ObjectBytes: m.objectBytes(),
		WindowEvents: len(m.window()), WindowBytes: m.windowBytes(), WindowCapacity: stats.WindowCapacity,
		Since: m.since, IndexBytes: stats.IndexBytes,
		Start: m.start, Oldest: m.first(), Next: m.next(),
	}, stats)
	req.GreaterOrEqual(stats.WindowCapacity, stats.WindowEvents)
	if stats.WindowCapacity > 64 {
		req.Less(stats.WindowCapacity, 4*stats.WindowEvents, "the ring must shrink with the window")
	}
}

func (d *driver) checkLatest() {
	req, latest := d.require(), d.model.latest()
	snapshot := d.state.Latest()
	req.Same(snapshot, d.state.Latest())
	req.Equal(d.model.shown, snapshot.RV())
	req.Equal(d.model.shown, d.state.RV())
	req.Equal(d.late, snapshot.HasIndex("late"))
	d.checkSnapshot(snapshot, d.model.at(d.model.shown), d.model.after(d.model.shown))
	for _, key := range driverKeys {
		e, rv := d.state.Get(key)
		req.Same(latest.elements[key], e)
		req.Equal(latest.rv, rv)
	}
}

// checkVersions asks At for versions, those that it must refuse included.
func (d *driver) checkVersions(whole bool) {
	m := d.model
	lowest := m.versions[0].rv - min(m.versions[0].rv, 2)
	highest := m.latest().rv + 2
	if whole {
		// All of a small window, and an even part of a large one.
		for rv := lowest; rv <= highest; rv += 1 + (highest-lowest)/64 {
			d.checkAt(rv)
		}
	}
	for range 6 {
		d.checkAt(lowest + uint64(d.choose("rv", int(highest-lowest+1))))
	}
}

func (d *driver) checkAt(rv uint64) {
	req, m := d.require(), d.model
	snapshot, err := d.state.At(rv)
	switch {
	case rv > m.shown:
		req.ErrorIs(err, watchcache.ErrFuture)
	case rv < m.compacted:
		req.ErrorIs(err, watchcache.ErrCompacted)
	case rv < m.dropped && !m.asked[rv]:
		req.ErrorIs(err, watchcache.ErrExpired)
	case rv < m.dropped && errors.Is(err, watchcache.ErrExpired):
		// The snapshot was kept for paging, and was replaced by others.
		delete(m.asked, rv)
	default:
		req.NoError(err)
		req.Equal(rv, snapshot.RV())
		if rv == m.shown {
			req.Same(d.state.Latest(), snapshot)
		}
		d.checkSnapshot(snapshot, m.at(rv), m.after(rv))
		again, err := d.state.At(rv)
		req.NoError(err)
		req.Same(snapshot, again)
		m.asked[rv] = true
	}
}

func (d *driver) checkPositions() {
	req, m := d.require(), d.model
	rv := m.dropped - min(m.dropped, 3) + uint64(d.choose("after", 3+int(m.latest().rv+3-m.dropped)))
	p, err := positionAfter(d.state, rv)
	if rv < m.dropped {
		req.ErrorIs(err, watchcache.ErrExpired)
	} else {
		req.NoError(err)
		req.Equal(m.after(rv), p)
	}

	d.checkFloors()

	p = m.first() - min(m.first(), 3) + watchcache.Position(d.choose("since", 4+len(m.window())))
	room := d.choose("room", 2+len(m.window()))
	events, through, err := since(d.state, p, room)
	switch {
	case p < m.first():
		req.ErrorIs(err, watchcache.ErrExpired)
	case p > m.next():
		req.ErrorIs(err, watchcache.ErrFuture)
	default:
		req.NoError(err)
		d.requireEvents(p, events, room, through)
	}
}

func (d *driver) checkSnapshot(s *watchcache.Snapshot, want version, next watchcache.Position) {
	req := d.require()
	req.Equal(next, s.Next())
	req.Equal(len(want.elements), s.Len())
	for _, key := range driverKeys {
		req.Same(want.elements[key], s.Get(key))
	}
	d.checkRange(s, want, "", "")
	var digest watchcache.Digest
	for key, e := range want.elements {
		digest.Toggle(key, e.RV)
	}
	req.Equal(digest, s.Digest())
	if d.choose("in a row", 2) == 0 {
		d.require().True(slices.Equal(want.ranged("", "", everything), s.All()))
	}

	prefix := []string{"", "/r/", "/r/ns1/", "/r/ns1", "/r/ns11/", "/r/ns2/", "/x"}[d.choose("prefix", 7)]
	from := append([]string{"", "/r/ns1/bb", "/z"}, driverKeys...)[d.choose("from", 3+len(driverKeys))]
	d.checkRange(s, want, prefix, from)
}

func (d *driver) checkRange(s *watchcache.Snapshot, want version, prefix, from string) {
	req := d.require()
	var got []*watchcache.Element
	collect := func(e *watchcache.Element) bool {
		got = append(got, e)
		return true
	}
	same := func(want []*watchcache.Element) {
		req.True(slices.Equal(want, got), "prefix %q from %q at %d", prefix, from, s.RV())
		got = nil
	}
	s.Range(prefix, from, collect)
	req.Equal(len(got), s.Count(prefix, from))
	same(want.ranged(prefix, from, everything))
	for _, value := range []string{"0", "1", "2"} {
		req.True(s.RangeIndex("value", value, prefix, from, collect))
		byValue := want.ranged(prefix, from, func(e *watchcache.Element) bool { return e.Labels["value"] == value })
		same(byValue)
		if s.HasIndex("late") {
			req.True(s.RangeIndex("late", value, prefix, from, collect))
			same(byValue)
		}
	}
	req.GreaterOrEqual(s.CountIndex("value", []string{"1"}, prefix, from),
		len(want.ranged(prefix, from, func(e *watchcache.Element) bool { return e.Labels["value"] == "1" })))
	for _, word := range []string{"x", "y"} {
		req.True(s.RangeIndex("words", word, prefix, from, collect))
		same(want.ranged(prefix, from, func(e *watchcache.Element) bool { return slices.Contains(wordsOf(e), word) }))
	}
	req.True(s.RangeIndexAny("words", []string{"y", "x", "y"}, prefix, from, collect))
	same(want.ranged(prefix, from, func(e *watchcache.Element) bool { return len(wordsOf(e)) > 0 }))
}
