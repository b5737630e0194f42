// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-watchcache/watchcache/internal/race"
	"github.com/kube-watchcache/watchcache/internal/script"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

var (
	phaseNames     = [...]string{starting: "starting", blocked: "blocked", following: "following", paused: "paused", stopped: "stopped"}
	integrityNames = [...]string{verified: "verified", suspected: "suspected", corrupt: "corrupt"}
	contactNames   = [...]string{answering: "answering", unresponsive: "unresponsive", lost: "lost"}
	eventNames     = [...]string{
		heard: "heard", versionRead: "versionRead", requestFailed: "requestFailed", versionFailed: "versionFailed", tick: "tick",
		listArrives: "listArrives", listed: "listed", listRefused: "listRefused", listFailed: "listFailed", listNeeded: "listNeeded",
		watchBroke: "watchBroke", undeliverable: "undeliverable", changeRefused: "changeRefused", restored: "restored",
		suspicion: "suspicion", equal: "equal", differs: "differs", notCompared: "notCompared",
		fellSilent: "fellSilent", reports: "reports", stop: "stop",
	}
	effectNames = [...]string{
		"expireWatches", "endBackfills", "dropKept", "resumeWatches", "reachList", "countList", "setGauges", "publish",
		"failWatches", "countFault", "orderList", "compareNow", "endReads", "logEvent",
	}
)

func (d effects) String() string {
	var names []string
	for i, name := range effectNames {
		if effects(1)<<i&(d&^publish) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

// conditionWords has what the table of ARCHITECTURE.md calls the states of a condition.
func (c *condition) words() []string {
	words := []string{phaseNames[c.phase], integrityNames[c.integrity], contactNames[c.contact]}
	if c.silent {
		words = append(words, "silent")
	}
	return words
}

// Histories. A history begins with a new cache. Its clock is canonical: times that make no
// difference any more are alike, so that the conditions are finitely many.

var (
	errTest    = own("test")
	testLimits = conditionLimits{storageTimeout: 2, pause: 1, pauseMax: 2, failedLists: 2, compares: true}
)

// monitor is what an observer of the cache knows, who sees the events and the effects.
type monitor struct {
	mustList bool // the state lacks events
	doubted  bool // the state may be wrong
	// comparing is true while a comparison is under way: in which condition it began, and
	// whether a list came since.
	comparing, beganDoubted, beganStale bool
	beganIntegrity                      integrity
	compareDue                          bool          // compareNow, and no comparison since
	arriving                            bool          // listArrives, and not listed yet
	expiries                            int           // of the watches, for the list that arrives
	ordered                             bool          // orderList since the last list
	orderAge                            time.Duration // since the last order for a suspicion, at most pauseMax
	orderPause                          time.Duration // the pause that it began, 0 before the first
	failing                             bool          // watches get an error
	ready, isPaused                     bool          // the gauges
}

// point is a condition of a cache with what the monitor knows.
type point struct {
	c condition
	m monitor
}

// move is one event of the alphabet.
type move struct {
	name string
	ev   event
	// stale is true if the event's request began before the last list, late if storage
	// was heard of since.
	stale, late bool
	compares    bool // not an event: a comparison begins
	step        bool // a second passes first
}

// epoch is the canonical present.
const epoch = time.Duration(1000)

// moves returns the alphabet. Where the cache compares, the events that concern contact and
// silence alone are left out: no event of the others depends on these, and they would multiply
// the conditions. TestEveryHistory explores them where the cache does not compare.
func moves(limits *conditionLimits) []move {
	all := allMoves()
	if !limits.compares {
		return all
	}
	return slices.DeleteFunc(all, func(mv move) bool {
		switch mv.ev.kind {
		case requestFailed, versionFailed, watchBroke, fellSilent, reports:
			return true
		}
		return mv.name == "listFailed" || mv.name == "versionRead"
	})
}

func allMoves() []move {
	const rv = 5
	e := func(name string, ev event) move { return move{name: name, ev: ev} }
	return []move{
		e("heard", event{kind: heard}), e("versionRead", event{kind: versionRead}),
		e("requestFailed", event{kind: requestFailed, cause: errTest}),
		{name: "requestFailed late", ev: event{kind: requestFailed, cause: errTest}, late: true},
		e("versionFailed", event{kind: versionFailed, cause: context.DeadlineExceeded}),
		{name: "tick", ev: event{kind: tick}, step: true},
		e("listArrives", event{kind: listArrives, rv: rv}),
		e("listArrives contradicts", event{kind: listArrives, rv: rv, contradicts: true}),
		e("listArrives partial", event{kind: listArrives, rv: rv, partial: true}),
		e("listArrives backwards", event{kind: listArrives, rv: rv, backwards: true}),
		e("listed", event{kind: listed, rv: rv}),
		e("listRefused", event{kind: listRefused, err: errTest}),
		e("listFailed", event{kind: listFailed, err: errTest, cause: errTest}),
		e("listFailed answers", event{kind: listFailed, err: errTest, cause: errTest, answers: true}),
		e("listFailed answers expired", event{kind: listFailed, err: errTest, cause: errTest, answers: true, expired: true}),
		e("listNeeded", event{kind: listNeeded, relist: metrics.RelistBehind}),
		e("watchBroke", event{kind: watchBroke, err: errTest, cause: errTest}),
		e("undeliverable", event{kind: undeliverable, err: errTest}),
		e("changeRefused", event{kind: changeRefused, err: errTest}),
		e("changeRefused gap", event{kind: changeRefused, err: errTest, gap: true}),
		e("restored", event{kind: restored, err: errTest}),
		{name: "restored stale", ev: event{kind: restored, err: errTest}, stale: true},
		e("suspicion", event{kind: suspicion, err: errTest}),
		{name: "compare", compares: true},
		e("equal", event{kind: equal, rv: rv}),
		e("differs", event{kind: differs, err: errTest, difference: 1}),
		e("differs otherwise", event{kind: differs, err: errTest, difference: 2}),
		e("notCompared", event{kind: notCompared, err: errTest}),
		e("fellSilent", event{kind: fellSilent}), e("reports", event{kind: reports}),
		e("stop", event{kind: stop}),
	}
}

// possible reports whether a move can follow: the Reflector's goroutine is at one thing at a
// time, and so is the consistency checker.
func (p *point) possible(mv *move) bool {
	switch mv.ev.kind {
	case listed:
		return p.m.arriving
	case listArrives, listRefused, listFailed, listNeeded, watchBroke, undeliverable, changeRefused:
		return !p.m.arriving
	case equal, differs, notCompared:
		return p.m.comparing
	case fellSilent:
		return !p.c.silent
	case reports:
		return p.c.silent
	}
	return !mv.compares || (!p.m.comparing && p.c.served() && p.c.limits.compares)
}

// play makes a move. broken names the invariants that do not hold after it.
func (p point) play(mv *move) (next point, ev event, do effects, broken []string) {
	m := p.m
	if mv.compares {
		m.comparing = true
		m.compareDue = false
		m.beganStale = false
		m.beganDoubted = m.doubted
		m.beganIntegrity = p.c.integrity
		return point{p.c, m}, ev, 0, nil
	}
	ev = mv.ev
	ev.now = epoch
	if mv.step {
		ev.now++
		m.orderAge = min(m.orderAge+1, p.c.limits.pauseMax)
	}
	ev.asked = ev.now
	if mv.late {
		ev.heard = ev.now + 1
	}
	began := p.c
	if mv.stale || (m.beganStale && (ev.kind == equal || ev.kind == differs || ev.kind == notCompared)) {
		began.lists--
	}
	if ev.kind == equal || ev.kind == differs || ev.kind == notCompared {
		began.integrity = m.beganIntegrity
		m.comparing = false
	}
	ev.began = &began
	after, do := p.c.on(ev)
	stale := began.lists != p.c.lists
	broken = m.observe(&p.c, &after, &ev, do, stale)
	return point{canonical(after, ev.now), m}, ev, do, broken
}

// canonical moves the present to the epoch, and makes times alike that make no difference.
func canonical(c condition, now time.Duration) condition {
	move := func(t, least, most time.Duration) time.Duration { return epoch + min(max(t-now, least), most) }
	c.since = 0
	c.pausedSince = 0
	c.resynced.rv = 0
	c.resynced.at = 0
	if c.contact == answering {
		c.outageSince = 0
	} else {
		c.outageSince = move(c.outageSince, -c.limits.storageTimeout, 0)
	}
	c.refusedSince = 0
	c.err = nil
	c.outageErr = nil
	if c.cause != metrics.RelistOther {
		c.cause = metrics.RelistStart // any of them
	}
	if c.listDue != 0 {
		c.listDue = move(c.listDue, 0, math.MaxInt32)
	}
	c.notBefore = move(c.notBefore, 0, math.MaxInt32)
	c.listNotBefore = move(c.listNotBefore, 0, math.MaxInt32)
	// Only their order counts.
	before := c.differs && c.differsAfter < c.lists
	c.lists = min(c.lists, 1)
	c.differsAfter = 0
	if c.differs && !before {
		c.differsAfter = c.lists
	}
	if !c.differs {
		c.difference = 0
	}
	c.failedLists = min(c.failedLists, c.limits.failedLists)
	c.changed = nil
	return c
}

// observe follows an event and returns the names of the invariants that it breaks.
func (m *monitor) observe(before, after *condition, ev *event, do effects, stale bool) (broken []string) {
	holds := func(ok bool, name string) {
		if !ok {
			broken = append(broken, name)
		}
	}
	if before.phase == stopped {
		holds(*after == *before && do == 0, "stopped is final")
		return broken
	}
	did := func(d effects) bool { return do&d != 0 }

	// What the event says of the state.
	switch ev.kind {
	case listArrives:
		m.arriving = true
		m.expiries = 0
		m.mustList = m.mustList || ev.backwards || (ev.contradicts && before.served() && before.integrity == verified)
		holds(did(endBackfills) == (before.lists > 0), "a list ends the backfills of the history before it")
		holds(!ev.backwards || did(reachList), "reads of a version that is gone do not get the new state")
		if before.served() && (ev.contradicts || ev.partial) {
			holds(after.ambiguous(ev.rv, ev.now) && !after.ambiguous(ev.rv, ev.now+resyncQuarantine), "nobody resumes at a corrective list")
		}
	case changeRefused:
		m.mustList = m.mustList || ev.gap
	case restored:
		m.mustList = m.mustList || !stale
		holds(stale == (do&^publish == 0), "a version request from before the list is ignored")
	case suspicion:
		m.doubted = m.doubted || did(logEvent)
		pauses := before.integrity != verified || before.persistent || ev.now < before.notBefore
		holds(did(logEvent) == !pauses, "a suspicion is followed up unless it pauses")
	case differs:
		switch {
		case stale:
		case !after.persistent:
			m.doubted = true
		case m.beganDoubted:
			m.doubted = false
		}
		holds(!after.persistent || before.persistent || stale || before.differsAfter < before.lists, "only a list shows that a difference persists")
	case equal:
		if !stale {
			m.doubted = m.doubted && !m.beganDoubted
		}
	}
	m.compareDue = m.compareDue || did(compareNow)
	if did(expireWatches) {
		m.expiries++
		holds(before.integrity != verified || after.integrity != verified, "watches of a right state go on")
	}
	if ev.kind == listArrives && (m.mustList || m.doubted) {
		holds(did(expireWatches), "watches of a wrong state expire before the new state is read")
	}
	if ev.kind == listed {
		wrong := before.integrity != verified
		holds(m.expiries <= 1, "watches of a wrong state expire once")
		holds(!wrong || m.expiries == 1, "watches of a wrong state expire")
		holds(!wrong || after.trustedFrom == ev.rv, "versions before a corrective list are not trusted")
		holds(after.phase == following, "a list makes a cache follow")
		holds(after.cause == metrics.RelistOther && (!m.ordered || before.cause != metrics.RelistOther), "an ordered list has a cause")
		m.arriving = false
		m.mustList = false
		m.doubted = false
		m.ordered = false
		m.beganStale = true
	} else {
		holds(ev.kind == listArrives || !did(expireWatches), "watches expire for a list only")
		holds(before.integrity != corrupt || after.integrity == corrupt, "corrupt ends by a list only")
		holds(before.lists == after.lists, "lists are counted once")
	}
	holds((ev.kind == listed) == did(countList), "lists are counted once")

	// What the condition must be.
	isWrong := m.mustList || m.doubted
	if after.phase != stopped {
		holds(!m.mustList || after.integrity == corrupt, "a state that lacks events is corrupt")
		holds(!isWrong || after.integrity != verified, "a state in doubt is not verified")
		holds(isWrong || after.integrity == verified, "a state without doubt is verified")
	}
	holds(answersOnlyWhatIsRight(after, isWrong), "never a consistent answer from a state that is not verified")
	holds(after.integrity == verified || after.trustedFrom == math.MaxUint64, "a wrong state shows no earlier version")

	// Orders.
	if did(orderList) {
		holds(!m.ordered, "one order until the next list")
		m.ordered = true
		if ev.kind == tick || ev.kind == suspicion || ev.kind == differs || ev.kind == notCompared {
			holds(m.orderPause == 0 || m.orderAge >= m.orderPause, "no two lists within a pause")
			holds(after.pause >= min(2*m.orderPause, after.limits.pauseMax), "the pause doubles")
			m.orderAge = 0
			m.orderPause = after.pause
		}
	}
	holds(after.integrity != corrupt || m.ordered || m.arriving, "a list comes for a corrupt state")
	holds(after.integrity != suspected || m.ordered || m.arriving || m.compareDue || m.comparing || after.listDue != 0,
		"a comparison or a list comes for a suspected state")
	holds(after.integrity != suspected || ev.kind != tick || after.listDue == 0 || after.listDue > ev.now || m.ordered, "a due list is ordered")

	// Watches and reads.
	m.failing = (m.failing || did(failWatches) || did(expireWatches)) && !did(resumeWatches)
	holds(after.phase != paused || m.failing, "watches of a paused cache end")
	holds(ev.kind != listed || !m.failing, "a paused cache resumes after a list")
	holds(before.phase != paused || after.phase == paused || ev.kind == listed || ev.kind == restored || ev.kind == stop, "a paused cache resumes after a list")
	holds(after.phase != paused || before.phase == paused || ev.kind == undeliverable || (ev.kind == listFailed && ev.answers), "a cache pauses only if storage answers")
	holds(ev.kind != listed || (did(reachList) && did(dropKept) && did(resumeWatches)), "readers get the new state")

	// Contact.
	isSign := ev.kind == heard || ev.kind == versionRead
	holds(!isSign || after.contact == answering, "contact lost always ends with heard")
	holds(before.contact != lost || after.contact == lost || isSign, "contact lost always ends with heard")
	holds(after.contact == lost || before.contact != lost || did(logEvent), "the end of an outage is logged")
	holds(ev.kind != tick || after.contact == answering || (after.contact == lost) == (ev.now-after.outageSince >= after.limits.storageTimeout), "storage is lost after the timeout")
	holds(ev.kind != tick || (after.contact == lost) == did(endReads), "reads of a lost storage end")
	if ev.kind == requestFailed && before.contact == answering {
		holds((after.contact == answering) == (ev.heard > ev.asked), "a sign of life counts for more than an older request")
	}

	// Gauges.
	if did(setGauges) {
		m.ready = after.served()
		m.isPaused = after.phase == paused
	}
	holds(after.phase == stopped || (m.ready == after.served() && m.isPaused == (after.phase == paused)), "gauges show the condition")
	return broken
}

// answersOnlyWhatIsRight reports whether reads that must be right are served from a state that
// is verified, and only then.
func answersOnlyWhatIsRight(c *condition, isWrong bool) bool {
	s := decideStates
	s.condition = c
	s.reports = true
	consistent := decide(&readOptions{list: true, recursive: true, unset: true}, &s)
	get := decide(&readOptions{unset: true}, &s)
	exact := decide(&readOptions{list: true, recursive: true, rv: 180, match: metav1.ResourceVersionMatchExact}, &s)
	right := c.served() && c.integrity == verified && !isWrong
	if !right {
		return !consistent.served() && !get.served() && (!exact.served() || !c.served() && c.integrity == verified)
	}
	return c.silent || (consistent.served() && get.served())
}

// exploration is every point that a history can reach, with the move that leads there first.
type exploration struct {
	points []point
	from   []int
	by     []int
	// next are the points after each move, -1 if it is impossible.
	next [][]int32
	// broken is the first history that breaks an invariant, and enters and leaves have the
	// events that begin and end each state.
	broken         string
	enters, leaves map[string]map[string]bool
}

// explored are the explorations with comparisons and without.
var explored = sync.OnceValue(func() map[string]*exploration {
	unchecked := testLimits
	unchecked.compares = false
	return map[string]*exploration{"with comparisons": explore(&testLimits), "without": explore(&unchecked)}
})

// maxRacing bounds an exploration with the race detector, which has nothing to find in a pure
// function and makes it four times as slow. make quick explores everything.
const maxRacing = 60_000

// explore follows every history breadth first, so that the first one that breaks an
// invariant is one of the shortest.
func explore(limits *conditionLimits) *exploration {
	x := &exploration{enters: map[string]map[string]bool{}, leaves: map[string]map[string]bool{}}
	alphabet := moves(limits)
	start := point{c: canonical(condition{limits: limits, cause: metrics.RelistStart}, epoch)}
	index := map[point]int32{start: 0}
	x.points, x.from, x.by = []point{start}, []int{-1}, []int{-1}
	for i := 0; i < len(x.points) && (!race.Enabled || i < maxRacing); i++ {
		next := make([]int32, len(alphabet))
		for j := range alphabet {
			mv := &alphabet[j]
			next[j] = -1
			if !x.points[i].possible(mv) {
				continue
			}
			p, ev, _, broken := x.points[i].play(mv)
			if broken != nil {
				x.broken = fmt.Sprintf("%s\n  breaks: %s\n  %+v\n  becomes %+v", x.history(i)+mv.name, strings.Join(broken, "; "), x.points[i], p)
				return x
			}
			if !mv.compares {
				x.note(&x.points[i].c, &p.c, eventNames[ev.kind])
			}
			at, known := index[p]
			if !known {
				at = int32(len(x.points))
				index[p] = at
				x.points, x.from, x.by = append(x.points, p), append(x.from, i), append(x.by, j)
			}
			next[j] = at
		}
		x.next = append(x.next, next)
	}
	return x
}

func (x *exploration) history(i int) string {
	if i == 0 {
		return ""
	}
	return x.history(x.from[i]) + moves(x.points[0].c.limits)[x.by[i]].name + ", "
}

// note records which states an event begins and ends.
func (x *exploration) note(before, after *condition, kind string) {
	add := func(to map[string]map[string]bool, words, without []string) {
		for _, word := range words {
			if !slices.Contains(without, word) {
				if to[word] == nil {
					to[word] = map[string]bool{}
				}
				to[word][kind] = true
			}
		}
	}
	add(x.enters, after.words(), before.words())
	add(x.leaves, before.words(), after.words())
}

// sequences returns how many sequences of up to n events begin at the points.
func (x *exploration) sequences(n int) (count float64) {
	last := make([]float64, len(x.points))
	for i := range last {
		last[i] = 1
	}
	for range n {
		now := make([]float64, len(x.points))
		for i, next := range x.next {
			for _, to := range next {
				if to >= 0 {
					now[i] += last[to]
				}
			}
			count += now[i]
		}
		last = now
	}
	return count
}

// Every sequence of events, from every condition that one can reach, keeps the invariants.
func TestEveryHistory(t *testing.T) {
	for name, x := range explored() {
		if x.broken != "" {
			t.Errorf("%s: the shortest history that breaks an invariant:\n  %s", name, x.broken)
			continue
		}
		conditions := map[condition]bool{}
		for _, p := range x.points {
			conditions[p.c] = true
		}
		t.Logf("%s: %d conditions, %d with what a monitor knows; %.3g sequences of up to seven events from these, and every longer one",
			name, len(conditions), len(x.points), x.sequences(7))
	}
}

// The table "States of a cache" of ARCHITECTURE.md has the events that begin and end each
// state.
func TestConditionTable(t *testing.T) {
	page, err := os.ReadFile("../ARCHITECTURE.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "## States of a cache")
	section, _, _ = strings.Cut(section, "\n## ")
	enters, leaves := map[string]map[string]bool{}, map[string]map[string]bool{}
	for _, x := range explored() {
		require.Empty(t, x.broken)
		merge(enters, x.enters)
		merge(leaves, x.leaves)
	}
	seen := []string{"verified", "answering"} // what is no fault has no row
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 || strings.Contains(cells[0], "---") || strings.Contains(cells[0], " state ") {
			continue
		}
		state := strings.TrimSpace(cells[0])
		seen = append(seen, state)
		assert.Equal(t, kindsIn(enters[state]), strings.TrimSpace(cells[1]), "what begins %s", state)
		assert.Equal(t, kindsIn(leaves[state]), strings.TrimSpace(cells[2]), "what ends %s", state)
	}
	for state := range leaves {
		assert.Contains(t, seen, state, "the table has no row for it")
	}
}

func merge(to, from map[string]map[string]bool) {
	for state, kinds := range from {
		if to[state] == nil {
			to[state] = map[string]bool{}
		}
		maps.Copy(to[state], kinds)
	}
}

// kindsIn writes events in the order of their declaration.
func kindsIn(set map[string]bool) string {
	var kinds []string
	for _, kind := range eventNames {
		if set[kind] {
			kinds = append(kinds, kind)
		}
	}
	if kinds == nil {
		return "–"
	}
	return strings.Join(kinds, ", ")
}

// TestConditionScripts runs testdata/condition/*.txt. A command is an event, with the fields
// that are true; "new [unchecked]" begins with another cache, "wait 3s" lets time pass, with
// a tick each second, and "compare" begins a comparison. Each event prints the condition, and
// the effects in their order.
func TestConditionScripts(t *testing.T) {
	script.Test(t, "testdata/condition/*.txt", func(t *testing.T, play script.Play) {
		f := &conditionFixture{}
		f.reset(true)
		play(f.run)
	})
}

type conditionFixture struct {
	c     condition
	began condition // of the comparison under way
	now   time.Duration
}

func (f *conditionFixture) reset(compares bool) {
	limits := limitsOf(&Config{StorageTimeout: 10 * time.Second, ConsistencyCheckInterval: time.Minute})
	limits.compares = compares
	*f = conditionFixture{c: condition{limits: limits, cause: metrics.RelistStart}, now: time.Minute}
}

func (f *conditionFixture) run(c *script.Command) (string, error) {
	switch c.Name {
	case "new":
		f.reset(!c.Flag("unchecked"))
		return "", nil
	case "compare":
		f.began = f.c
		return "", nil
	case "wait":
		d, err := time.ParseDuration(c.Word())
		var out []string
		for end := f.now + d; f.now < end; {
			f.now += time.Second
			if do, line := f.handle(event{kind: tick}); do&^publish != 0 {
				out = append(out, line)
			}
		}
		return strings.Join(out, "\n"), err
	}
	kind := slices.Index(eventNames[:], c.Name)
	if kind < 0 {
		return "", fmt.Errorf("no event %q", c.Name)
	}
	rv, err := c.Number("rv")
	difference, e := c.Number("difference")
	if e != nil {
		return "", e
	}
	ev := event{
		kind: eventKind(kind), err: errTest, cause: errTest, asked: f.now, rv: uint64(rv), began: &f.c, difference: watchcache.Digest(difference),
		contradicts: c.Flag("contradicts"), backwards: c.Flag("backwards"), partial: c.Flag("partial"),
		answers: c.Flag("answers"), expired: c.Flag("expired"), gap: c.Flag("gap"),
	}
	switch ev.kind {
	case listNeeded:
		ev.relist = metrics.RelistBehind
	case equal, differs, notCompared:
		began := f.began
		ev.began = &began
	case restored:
		if c.Flag("stale") {
			began := f.c
			began.lists--
			ev.began = &began
		}
	}
	if c.Flag("late") {
		ev.heard = f.now + 1
	}
	_, line := f.handle(ev)
	return line, err
}

func (f *conditionFixture) handle(ev event) (effects, string) {
	ev.now = f.now
	after, do := f.c.on(ev)
	f.c = after
	line := strings.Join(after.words(), " ")
	if after.trustedFrom == math.MaxUint64 {
		line += ", trusts none"
	} else if after.trustedFrom > 0 {
		line += fmt.Sprintf(", trusts %d", after.trustedFrom)
	}
	if do&^publish != 0 {
		line += ": " + do.String()
	}
	return do, line
}
