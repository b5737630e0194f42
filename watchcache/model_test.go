// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// model is the naive counterpart of a State: it copies the whole contents for
// every version, and answers by looking through all of them.
type model struct {
	config watchcache.Config
	// overhead is what the State accounts for an element and for an event
	// beyond the element's Size.
	overhead struct{ element, event int64 }

	// versions are all since the last Replace, in the order in which they came
	// to be. Of several with one rv the last is the one that counts.
	versions []version
	// events are all since the last Replace; those from kept on are in the
	// window. The first has the position start.
	events []*watchcache.Event
	kept   int
	start  watchcache.Position

	// shown is the resourceVersion that is known, or assumed, to be complete;
	// closed the one that the source has declared complete.
	shown, closed, compacted uint64
	// dropped is the rv of the newest event that is no longer kept, or of the
	// last Replace.
	dropped    uint64
	dispatched watchcache.Position
	now        int64
	// since is when dropped was current.
	since int64
	// left are the copies that were made of events.
	left map[watchcache.Position]*watchcache.Element
	// asked are the rvs that At has served since the last Replace.
	asked map[uint64]bool
}

// version is everything at one rv.
type version struct {
	rv       uint64
	elements map[string]*watchcache.Element
}

func newModel(t testing.TB, config watchcache.Config) *model {
	m := &model{config: config, versions: []version{{}}, asked: map[uint64]bool{}, left: map[watchcache.Position]*watchcache.Element{}}
	probe := watchcache.New(watchcache.Config{WindowBytes: 1 << 40})
	apply(t, probe, added("a", 1, "1"))
	m.overhead.element, m.overhead.event = probe.Stats().ObjectBytes, probe.Stats().WindowBytes
	return m
}

func (m *model) latest() version { return m.versions[len(m.versions)-1] }

func (m *model) next() watchcache.Position { return m.start + watchcache.Position(len(m.events)) }

func (m *model) first() watchcache.Position { return m.start + watchcache.Position(m.kept) }

func (m *model) window() []*watchcache.Event { return m.events[m.kept:] }

// at is the version that shows rv, which must not be before the last Replace.
func (m *model) at(rv uint64) version {
	for _, v := range slices.Backward(m.versions) {
		if v.rv <= rv {
			return v
		}
	}
	panic("before the last Replace")
}

// refuses returns the error with which a change must be refused, nil if it
// fits.
func (m *model) refuses(c watchcache.Change) error {
	previous, exists := m.latest().elements[c.Element.Key]
	switch {
	case c.RV < m.latest().rv, c.RV <= m.closed:
		return watchcache.ErrBackwards
	case m.applied(c):
		return errApplied
	case exists == (c.Type == watchcache.Added), exists && previous.RV == c.RV:
		return watchcache.ErrGap
	}
	return nil
}

// errApplied stands for a change that is left out because it was applied.
var errApplied = errors.New("applied")

// applied reports whether the window has the event of this change already.
func (m *model) applied(c watchcache.Change) bool {
	previous, exists := m.latest().elements[c.Element.Key]
	fits := exists != (c.Type == watchcache.Added) && (!exists || previous.RV != c.RV)
	return !fits && slices.ContainsFunc(m.window(), func(e *watchcache.Event) bool {
		return e.RV == c.RV && e.Type == c.Type && e.Element.Key == c.Element.Key
	})
}

// apply takes a change that fits, and returns the event and how many others
// must leave the window.
func (m *model) apply(c watchcache.Change) (e *watchcache.Event, evicted, cut int) {
	elements := maps.Clone(m.latest().elements)
	if elements == nil {
		elements = map[string]*watchcache.Element{}
	}
	e = &watchcache.Event{
		Position: m.next(), RV: c.RV, Type: c.Type, Element: c.Element, Previous: elements[c.Element.Key], Received: c.Received,
	}
	if c.Type == watchcache.Deleted {
		delete(elements, c.Element.Key)
	} else {
		elements[c.Element.Key] = c.Element
	}
	if c.Whole {
		m.shown = c.RV
	} else {
		m.shown = max(m.shown, c.RV-1)
	}
	m.versions = append(m.versions, version{rv: c.RV, elements: elements})
	m.events = append(m.events, e)
	evicted, cut = m.trim(c.Received)
	return e, evicted, cut
}

func (m *model) progress(rv uint64) {
	m.shown, m.closed = rv, rv
	m.versions = append(m.versions, version{rv: rv, elements: m.latest().elements})
}

func (m *model) replace(elements []*watchcache.Element, rv uint64) (duplicates int) {
	replaced := map[string]*watchcache.Element{}
	for _, e := range elements {
		if old, ok := replaced[e.Key]; ok {
			duplicates++
			if old.RV > e.RV {
				continue
			}
		}
		replaced[e.Key] = e
	}
	m.start = m.next() + 1
	m.events, m.kept = nil, 0
	m.versions = []version{{rv: rv, elements: replaced}}
	m.shown, m.closed, m.compacted, m.dropped, m.since = rv, rv, 0, rv, m.now
	clear(m.asked)
	clear(m.left)
	return duplicates
}

// trim moves time forward and evicts as Config documents it.
func (m *model) trim(now int64) (evicted, cut int) {
	m.now = max(m.now, now)
	for len(m.window()) > 0 {
		oldest := m.window()[0]
		expired := m.now-oldest.Received > int64(m.config.History)
		n := 1 // events of the oldest revision
		for n < len(m.window()) && m.window()[n].RV == oldest.RV {
			n++
		}
		old := expired && len(m.window())-n >= m.config.MinEvents
		large := m.windowBytes() > m.config.WindowBytes && len(m.window()) > 1
		if m.first()+watchcache.Position(n) > m.dispatched {
			old, large = false, large && m.config.CeilingBytes > 0 && m.windowBytes() > m.config.CeilingBytes
		}
		if !old && !large || oldest.RV > m.shown {
			break
		}
		m.dropped = oldest.RV
		for _, e := range m.window()[:n] {
			m.since = max(m.since, e.Received)
		}
		m.kept += n
		evicted += n
		if !expired {
			cut += n
		}
	}
	return evicted, cut
}

func (m *model) size(elements map[*watchcache.Element]bool) (bytes int64) {
	for e := range elements {
		bytes += e.Size + m.overhead.element
	}
	return bytes
}

// windowBytes is the memory of the window alone: each element that is in an
// event and not in the current state, once.
func (m *model) windowBytes() int64 {
	only := map[*watchcache.Element]bool{}
	for _, e := range m.window() {
		only[e.Element] = true
		if e.Previous != nil {
			only[e.Previous] = true
		}
	}
	for _, e := range m.latest().elements {
		delete(only, e)
	}
	copies := int64(0) // for watchers whose selectors a change has left
	for _, e := range m.window() {
		if e.Type == watchcache.Modified && !e.Element.SelectsAs(e.Previous) {
			copies += e.Previous.Size + m.overhead.element
		}
	}
	return copies + m.size(only) + int64(len(m.window()))*m.overhead.event
}

func (m *model) objectBytes() int64 {
	all := map[*watchcache.Element]bool{}
	for _, e := range m.latest().elements {
		all[e] = true
	}
	return m.size(all)
}

// after is the position of the first event above rv.
func (m *model) after(rv uint64) watchcache.Position {
	for _, e := range m.events {
		if e.RV > rv {
			return e.Position
		}
	}
	return m.next()
}

// ranged lists a version's elements by filtering and sorting all of them.
func (v version) ranged(prefix, from string, which func(*watchcache.Element) bool) []*watchcache.Element {
	var out []*watchcache.Element
	for key, e := range v.elements {
		if strings.HasPrefix(key, prefix) && key >= from && which(e) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b *watchcache.Element) int { return strings.Compare(a.Key, b.Key) })
	return out
}

func everything(*watchcache.Element) bool { return true }

// A model with the same mistake as the code would hide it, so a few answers are
// written out by hand.
func TestModel(t *testing.T) {
	m := newModel(t, watchcache.Config{History: 10, WindowBytes: 1 << 40})
	require.Equal(t, 1, m.replace([]*watchcache.Element{element("a", 1, "1"), element("a", 2, "2")}, 3))
	require.ErrorIs(t, m.refuses(added("a", 4, "x")), watchcache.ErrGap)
	require.ErrorIs(t, m.refuses(modified("b", 4, "x")), watchcache.ErrGap)
	require.ErrorIs(t, m.refuses(added("b", 3, "x")), watchcache.ErrBackwards)
	require.NoError(t, m.refuses(added("b", 4, "x")))
	m.apply(added("b", 4, "x"))
	m.apply(modified("a", 6, "x"))
	require.ErrorIs(t, m.refuses(modified("a", 6, "x")), errApplied)
	require.ErrorIs(t, m.refuses(added("a", 6, "x")), watchcache.ErrGap)
	require.Equal(t, "2", m.at(5).elements["a"].Labels["value"])
	require.Len(t, m.at(3).elements, 1)
	require.Equal(t, m.start+1, m.after(5))
	require.Equal(t, 2*m.overhead.event+2*m.overhead.element, m.windowBytes())
	for n := range 2 { // the first of the two events is dispatched in between
		evicted, cut := m.trim(100)
		require.Equal(t, []int{n, 0}, []int{evicted, cut})
		m.dispatched = m.next() - 1
	}
	require.Equal(t, uint64(4), m.dropped)
}
