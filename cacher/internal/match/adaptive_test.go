// SPDX-License-Identifier: Apache-2.0

package match

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"
	"weak"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// adapted is a state of n pods of some bytes each: the label app has a value for ten of
// them, tier one for half of them, and pod one for each.
type adapted struct {
	x     *Indexes
	state *watchcache.State
	rv    uint64
}

const adaptedPods = 2000

func newAdapted(most, percent int) *adapted {
	a := &adapted{x: NewIndexes(Config{Prefix: "/pods/", Labels: []string{"declared"}, Adaptive: most, AdaptivePercent: percent})}
	a.state = watchcache.New(watchcache.Config{WindowBytes: 1 << 30, Indexes: a.x.OfState()})
	var all []*watchcache.Element
	for i := range adaptedPods {
		all = append(all, adaptedPod(i, 1))
	}
	a.rv = 1
	a.state.Replace(all, 1)
	return a
}

func adaptedPod(i int, rv uint64) *watchcache.Element {
	e := pod(fmt.Sprintf("%s/%05d", []string{"a", "b"}[i%2], i), rv, fmt.Sprintf("app=%d", i/10), fmt.Sprintf("tier=%d", i%2), fmt.Sprintf("pod=%d", i), fmt.Sprintf("zone=%d", i%50),
		fmt.Sprintf("declared=%d", i%100), fmt.Sprintf("spec.nodeName=%d", i%50))
	e.Size = 4000
	return e
}

// list lists by selectors, and returns how many elements it has looked at.
func (a *adapted) list(t testing.TB, key, label, field string) int {
	q := ask(t, key, label, field)
	return a.x.Scan(a.state.Latest(), &q, "", nil, func(*watchcache.Element) bool { return true }).Evaluated
}

// change writes to n pods.
func (a *adapted) change(t testing.TB, n int) {
	for i := range n {
		a.rv++
		_, err := a.state.Apply(watchcache.Change{Type: watchcache.Modified, Element: adaptedPod(i%adaptedPods, a.rv), RV: a.rv, Whole: true})
		require.NoError(t, err)
	}
}

// An index is built for what LISTs ask for again and again, by the label that says
// most, and looks at matches only.
func TestAdaptBuildsWhatIsMissed(t *testing.T) {
	for name, test := range map[string]struct{ label, field, index string }{
		"label":                  {"app=7", "", "l:app"},
		"values":                 {"app in (7,8)", "", "l:app"},
		"field":                  {"", "spec.nodeName=7", "f:spec.nodeName"},
		"the one that says most": {"tier=1,app=7", "", "l:app"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAdapted(8, 100)
			lists := 0
			for ; len(a.x.Adaptive()) == 0; lists++ {
				require.Less(t, lists, 20)
				require.Greater(t, a.list(t, "/pods/", test.label, test.field), adaptedPods-1)
				for _, change := range a.x.Adapt(a.state, time.Second) {
					require.NoError(t, change.Err)
				}
			}
			require.Greater(t, lists, buildAt*costOfElement-1, "the LISTs have cost as much as the index, several times")
			require.Equal(t, []string{test.index}, a.x.Adaptive())
			require.LessOrEqual(t, a.list(t, "/pods/", test.label, test.field), 40)
			require.Positive(t, a.state.IndexBytes(test.index))
		})
	}
}

// No index is built for keys that change all the time, for one that is declared, or beside
// so many writes that the index would cost more.
func TestAdaptBuildsNothing(t *testing.T) {
	for name, list := range map[string]func(t *testing.T, a *adapted, i int){
		"changing keys": func(t *testing.T, a *adapted, i int) { a.list(t, "/pods/", fmt.Sprintf("key-%d=x", i), "") },
		"declared":      func(t *testing.T, a *adapted, _ int) { a.list(t, "/pods/", "declared=7", "") },
		"negative":      func(t *testing.T, a *adapted, _ int) { a.list(t, "/pods/", "app!=7", "") },
		"everything":    func(t *testing.T, a *adapted, _ int) { a.list(t, "/pods/", "", "") },
		"writes": func(t *testing.T, a *adapted, _ int) {
			a.change(t, 20)
			a.list(t, "/pods/", "app=7", "")
		},
		"nobody lists": func(*testing.T, *adapted, int) {},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAdapted(8, 100)
			for i := range 300 {
				list(t, a, i)
				require.Empty(t, a.x.Adapt(a.state, time.Duration(i)*time.Second))
			}
			require.LessOrEqual(t, len(a.x.adaptive.mu.missed), maxMissed)
		})
	}
	for _, most := range []int{-1, 0} {
		a := newAdapted(most, 100)
		for i := range 100 {
			a.list(t, "/pods/", "app=7", "")
			require.Empty(t, a.x.Adapt(a.state, time.Duration(i)*time.Second), "none may be built")
		}
		require.Empty(t, a.x.adaptive.mu.missed, "and nothing is counted")
	}
}

// The policy's limits.
func TestPolicy(t *testing.T) {
	p := policy{buildAt: 4, payWithin: payWithin}
	index := func(name string, u usage) usage { u.name = name; return u }
	names := func(all []usage) (names []string) {
		for _, u := range all {
			names = append(names, u.name)
		}
		return names
	}
	all := []usage{
		index("pays", usage{saved: 11, cost: 10, age: payWithin, bytes: 30}),
		index("does not pay", usage{saved: 10, cost: 10, age: payWithin, bytes: 30}),
		index("is young", usage{saved: 0, cost: 10, age: payWithin - 1, bytes: 70}),
		index("has no room", usage{saved: 11, cost: 10, age: payWithin, bytes: 1}),
	}
	keep, drop, renew, left := p.review(all, 100)
	require.Equal(t, []string{"pays", "is young"}, names(keep))
	require.Equal(t, []string{"does not pay", "has no room"}, names(drop))
	require.Equal(t, []string{"pays"}, names(renew))
	require.Zero(t, left)

	require.Equal(t, []string{"old", "renewed"}, names(p.yielding([]usage{
		index("saves as much", usage{saved: 10, age: fadeAfter}),
		index("is new", usage{saved: 1, age: fadeAfter - 1}),
		index("renewed", usage{saved: 1, before: 8}),
		index("old", usage{saved: 1, age: fadeAfter}),
	}, 10)))

	missed := map[attribute]miss{{byLabel, "a"}: {elements: 20}, {byLabel, "b"}: {elements: 30}, {byLabel, "c"}: {elements: 40}}
	none := func(attribute) bool { return false }
	_, _, ok := p.wanted(missed, 10, none)
	require.False(t, ok, "scans without it have cost as much as buildAt times an index")
	wanted, most, ok := p.wanted(missed, 7, func(candidate attribute) bool { return candidate.name == "c" })
	require.True(t, ok)
	require.Equal(t, []any{"b", int64(30)}, []any{wanted.name, most})

	stats := watchcache.Stats{Objects: 10, Start: 100, Next: 105}
	require.Equal(t, int64(10*costOfElement+5*costOfEvent), costOf(stats, 0))
	require.Equal(t, int64(10*costOfElement+2*costOfEvent), costOf(stats, 103))
}

// What a read misses is counted by the attributes that it fails, and that have no index; half of
// it is forgotten in a minute.
func TestMissedIndexes(t *testing.T) {
	a := newAdapted(8, 100)
	require.Len(t, a.missed(t, "app=1", 0), 1)
	long := strings.Repeat("x", maxMissedName)
	q := ask(t, "/pods/", "tier=1,zone=1,declared=1,app=1", long+"=1,"+long+"x=1")
	var b blame
	for i, e := range q.equalities {
		if e.name != "tier" {
			b[i] = 100
		}
	}
	a.x.countMissed(&q, &b)
	want := map[attribute]miss{{byLabel, "zone"}: {1, 100}, {byField, long}: {1, 100}}
	require.Equal(t, want, a.x.adaptive.mu.missed)
	a.x.countMissed(&q, &b)
	stats := watchcache.Stats{Objects: adaptedPods, Start: 100, Next: 120}
	for _, now := range []time.Duration{fadeAfter - 1, fadeAfter, 2*fadeAfter - 1} {
		_, _, ok := a.x.adaptive.takeWanted(stats, now)
		require.False(t, ok)
		require.Equal(t, now >= fadeAfter, a.x.adaptive.mu.missed[attribute{byLabel, "zone"}] == miss{1, 100}, "after %v", now)
	}
	require.Equal(t, watchcache.Position(110), a.x.adaptive.next)
}

// missed has an index built for a label.
func (a *adapted) missed(t *testing.T, label string, now time.Duration) []Adapted {
	for range 2 * buildAt * costOfElement {
		a.list(t, "/pods/", label, "")
	}
	return a.x.Adapt(a.state, now)
}

// An index stays while it pays, and goes when it has not for ten minutes: because nobody
// reads it, or because writes cost more.
func TestAdaptDropsWhatDoesNotPay(t *testing.T) {
	a := newAdapted(8, 100)
	require.Len(t, a.missed(t, "app=7", time.Minute), 1)
	now := time.Minute
	for range 5 {
		now += payWithin
		for range 4 {
			a.list(t, "/pods/", "app=7", "")
		}
		require.Empty(t, a.x.Adapt(a.state, now), "after %v", now)
	}
	require.Empty(t, a.x.Adapt(a.state, now+payWithin-1), "not yet")
	changes := a.x.Adapt(a.state, now+payWithin)
	require.Len(t, changes, 1)
	require.Equal(t, []any{"l:app", true}, []any{changes[0].Index, changes[0].Dropped})
	require.Empty(t, a.x.Adaptive())
	require.False(t, a.state.Latest().HasIndex("l:app"))
	require.Equal(t, adaptedPods, a.list(t, "/pods/", "app=7", ""))

	require.Len(t, a.missed(t, "app=7", now), 1)
	for range 4 {
		a.list(t, "/pods/", "app=7", "")
	}
	a.change(t, 1000)
	require.Len(t, a.x.Adapt(a.state, now+payWithin), 1, "a thousand writes cost more than four LISTs")
}

// There are no more indexes than allowed, and they take no more memory: what is too large
// is not tried again for ten minutes.
func TestAdaptIsBounded(t *testing.T) {
	a := newAdapted(2, 100)
	for i, label := range []string{"app=1", "tier=3", "pod=7"} {
		require.Len(t, a.missed(t, label, 0), min(1, 2-i), label)
	}
	for range 10 {
		require.Equal(t, []string{"l:app", "l:tier"}, a.x.Adaptive())
	}

	a = newAdapted(8, 1) // 40 bytes of 4,320 for each
	require.NoError(t, a.missed(t, "app=1", 0)[0].Err)
	require.ErrorIs(t, a.missed(t, "pod=1", 0)[0].Err, watchcache.ErrTooLarge)
	require.Empty(t, a.missed(t, "pod=1", payWithin-1))
	for range 60 {
		a.list(t, "/pods/", "app=7", "") // pays, and saves more than the other one would
	}
	require.ErrorIs(t, a.missed(t, "pod=1", payWithin)[0].Err, watchcache.ErrTooLarge)

	// The objects become fewer and smaller, and what is left has no room for an index.
	var small []*watchcache.Element
	for i := range 1000 {
		e := adaptedPod(i, 2)
		e.Size = 0
		small = append(small, e)
	}
	a.state.Replace(small, 2)
	require.True(t, a.state.Latest().HasIndex("l:app"), "a list keeps the index")
	changes := a.x.Adapt(a.state, payWithin+1)
	require.Len(t, changes, 1)
	require.True(t, changes[0].Dropped)
}

// LISTs that began before an index was there do not have it built a second time, which the
// state would keep for ever.
func TestAdaptBuildsAnIndexOnce(t *testing.T) {
	a := newAdapted(8, 100)
	before := a.x.adaptive.earned.Load()
	require.Len(t, a.missed(t, "app=7", 0), 1)
	after, bytes := a.x.adaptive.earned.Swap(before), a.state.Stats().IndexBytes
	for range 2 * buildAt * costOfElement {
		a.list(t, "/pods/", "app=7", "")
	}
	a.x.adaptive.earned.Store(after)
	require.Empty(t, a.x.Adapt(a.state, time.Second))
	require.Equal(t, bytes, a.state.Stats().IndexBytes)
}

// A key that is listed once a second gets its index among 160 others in that second that
// never come again.
func TestAdaptFindsAKeyAmongChangingOnes(t *testing.T) {
	a, others := newAdapted(8, 100), 0
	for second := 0; len(a.x.Adaptive()) == 0; second++ {
		require.Less(t, second, 600)
		for range 20 {
			var selector []string
			for range maxBlamed {
				others++
				selector = append(selector, fmt.Sprintf("key-%d=x", others))
			}
			a.list(t, "/pods/", strings.Join(selector, ","), "")
		}
		a.list(t, "/pods/", "app=7", "")
		a.x.Adapt(a.state, time.Duration(second)*time.Second)
	}
	require.Equal(t, []string{"l:app"}, a.x.Adaptive())
}

// Indexes that pay but are seldom read make room for one that is read all the time, where
// their number or their size leaves none.
func TestAdaptMakesRoom(t *testing.T) {
	for name, test := range map[string]struct {
		most, percent int
		seldom        []string
	}{
		"number": {2, 100, []string{"none=1", "no=1"}}, "size": {8, 1, []string{"pod=1"}},
		"size, among several": {8, 2, []string{"pod=1", "tier=9", "zone=99"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAdapted(test.most, test.percent)
			for _, label := range test.seldom {
				require.NoError(t, a.missed(t, label, 0)[0].Err)
			}
			for second := range 11 * 60 {
				if second%100 == 0 {
					for _, label := range test.seldom {
						a.list(t, "/pods/", label, "")
					}
				}
				a.list(t, "/pods/", "app=7", "")
				a.x.Adapt(a.state, time.Duration(second)*time.Second)
				require.LessOrEqual(t, len(a.x.Adaptive()), test.most)
			}
			require.Contains(t, a.x.Adaptive(), "l:app")
			require.Len(t, a.x.Adaptive(), len(test.seldom), "only one makes room")
		})
	}
}

// When there is less room, the index that saves reads the most stays, also right after its
// count of savings has begun again.
func TestAdaptKeepsWhatSavesMost(t *testing.T) {
	a := newAdapted(8, 10)
	require.Len(t, a.missed(t, "app=7", 0), 1)
	for range 100 {
		a.list(t, "/pods/", "app=7", "")
	}
	index := (*a.x.adaptive.earned.Load())[attribute{byLabel, "app"}]
	require.EqualValues(t, 100*(adaptedPods-10), index.saved.Load())
	require.Len(t, a.missed(t, "pod=7", payWithin-time.Second), 1)
	a.list(t, "/pods/", "pod=7", "")
	require.Empty(t, a.x.Adapt(a.state, payWithin))
	for range 10 {
		require.Equal(t, "app", a.x.adaptive.usages(a.state, a.state.Stats(), payWithin)[0].name)
	}
	var small []*watchcache.Element
	for i := range adaptedPods {
		e := adaptedPod(i, 2)
		e.Size = 0
		small = append(small, e)
	}
	a.state.Replace(small, 2)
	require.Len(t, a.x.Adapt(a.state, payWithin+time.Second), 1)
	require.Equal(t, []string{"l:app"}, a.x.Adaptive())
}

// The counts keep names, and not the selectors that these were parts of.
func TestAdaptKeepsNoSelector(t *testing.T) {
	a, selector := newAdapted(8, 100), "spec.nodeName="+strings.Repeat("x", 1<<20)
	memory := weak.Make(unsafe.StringData(selector))
	a.list(t, "/pods/", "", selector)
	require.Len(t, a.x.adaptive.mu.missed, 1)
	runtime.GC()
	require.Nil(t, memory.Value(), "a selector of 1 MiB is still in memory")
	runtime.KeepAlive(a)
}

// With indexes that come and go at any time, every LIST at every version is what looking at
// each element gives.
func TestAdaptChangesNoAnswer(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		x := NewIndexes(Config{Prefix: "/pods/", Labels: []string{"l0"}, Adaptive: rapid.IntRange(-1, 3).Draw(rt, "most"), AdaptivePercent: 100})
		x.adaptive.policy = policy{sampled: 1, payWithin: 3 * time.Second}
		state := watchcache.New(watchcache.Config{WindowBytes: 1 << 30, Indexes: x.OfState()})
		rv, present := uint64(1), map[string]bool{}
		draw := func(what string, n int) int { return rapid.IntRange(0, n-1).Draw(rt, what) }
		some := func() *watchcache.Element {
			var attributes []string
			for i := range 3 {
				if n := draw("value", 4); n > 0 {
					attributes = append(attributes, fmt.Sprintf("l%d=%d", i, n))
				}
			}
			attributes = append(attributes, fmt.Sprintf("spec.nodeName=%d", draw("node", 3)))
			return pod(fmt.Sprintf("%s/%d", []string{"a", "b"}[draw("namespace", 2)], draw("name", 12)), rv, attributes...)
		}
		replace := func() {
			clear(present)
			var all []*watchcache.Element
			for range draw("listed", 20) {
				e := some()
				present[e.Key] = true
				all = append(all, e)
			}
			state.Replace(all, rv)
		}
		replace()
		oldest := rv
		now := time.Duration(0)
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			switch draw("step", 8) {
			case 0:
				now += time.Duration(draw("seconds", 10)) * time.Second
				for _, change := range x.Adapt(state, now) {
					require.NoError(rt, change.Err)
				}
			case 1:
				if draw("list again", 4) == 0 {
					rv++
					replace()
					oldest = rv
				}
			case 2, 3, 4:
				rv++
				e := some()
				e.RV = rv
				typ := watchcache.Added
				if present[e.Key] {
					typ = []watchcache.EventType{watchcache.Modified, watchcache.Deleted}[draw("deleted", 2)]
				}
				present[e.Key] = typ != watchcache.Deleted
				_, err := state.Apply(watchcache.Change{Type: typ, Element: e, RV: rv, Whole: true})
				require.NoError(rt, err)
			default:
				snapshot, err := state.At(oldest + uint64(draw("version", int(rv-oldest)+1)))
				require.NoError(rt, err)
				var of []string
				for i := range 3 {
					if n := draw("asked", 8); n < 4 {
						of = append(of, []string{
							fmt.Sprintf("l%d=%d", i, n), fmt.Sprintf("l%d in (1,%d)", i, n), fmt.Sprintf("l%d!=%d", i, n), fmt.Sprintf("!l%d", i),
						}[draw("operator", 4)])
					}
				}
				field := []string{"", "spec.nodeName=1", "metadata.namespace=a"}[draw("field", 3)]
				q := ask(t, []string{"/pods/", "/pods/a/"}[draw("key", 2)], strings.Join(of, ","), field)
				from := []string{"", "/pods/a/5"}[draw("from", 2)]
				var got, want []*watchcache.Element
				x.Scan(snapshot, &q, from, nil, func(e *watchcache.Element) bool { got = append(got, e); return true })
				snapshot.Range(q.key, from, func(e *watchcache.Element) bool {
					if q.matches(e) {
						want = append(want, e)
					}
					return true
				})
				require.True(rt, slices.Equal(want, got), "%v and %q by %v: %d elements, want %d", of, field, x.Adaptive(), len(got), len(want))
			}
		}
	})
}
