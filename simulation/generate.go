// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Kind says how a schedule's operations follow each other.
type Kind uint8

const (
	// Deterministic: everything comes to rest between two operations.
	Deterministic Kind = iota
	// Racing: several operations come at once.
	Racing
)

// Generate makes the schedule of a seed.
func Generate(seed uint64, kind Kind) []Operation {
	g := &generator{kind: kind, rand: rand.New(rand.NewPCG(seed, uint64(kind)+1))}
	// Not drawn: the schedules of earlier seeds stay what they were.
	g.recall = seed%2 == 0
	g.rounds = []int{0, 2, 3, 16}[seed/2%4]
	g.mood()
	g.out = make([]Operation, 0, g.length+10)
	for range g.rand.IntN(4) {
		g.add(g.put())
	}
	g.start()
	for len(g.out) < g.length {
		g.step()
		if kind == Racing && g.rand.IntN(3) > 0 {
			g.out[len(g.out)-1].Together = true
		}
	}
	g.sharing(seed)
	return g.out
}

// generator makes operations. The generator does not know what they do to the
// storage; it only remembers what it has ordered.
type generator struct {
	kind    Kind
	recall  bool
	rounds  int
	rand    *rand.Rand
	out     []Operation
	length  int
	setup   Setup
	watches []string
	// reads are those of pages, which can be continued; asked are all of them.
	reads   []string
	asked   []string
	faults  []string
	clients int
	// kept: lists are encoded, in formats, as those before.
	kept   bool
	before []Query
	// weights are how often each operation comes in this schedule.
	weights []weighted
	total   int
}

type weighted struct {
	weight int
	make   func() Operation
}

var (
	names      = []string{"a/one", "a/two", "a/six", "aa/one", "b/one", "b/two", "longer-name/one"}
	namespaces = []string{"a", "aa", "b", "longer-name"}
	colors     = []string{"", "red", "blue", "green"}
	sizes      = []string{"", "1", "2"}
	nodes      = []string{"", "n1", "n2"}
	selectors  = []string{
		"color=red", "color=blue", "color!=red", "color in (red,blue)", "color in (red,green),size=1", "color notin (red)",
		"color", "!color", "size=1", "size!=1,color=red", "no-such-label=x",
	}
	fieldSelectors = []string{
		"metadata.name=one", "metadata.name!=one", "spec.nodeName=n1", "spec.nodeName=", "spec.nodeName!=n1",
		"metadata.namespace=a", "metadata.namespace=a,metadata.name=two", "spec.nodeName=n2,metadata.name=one",
	}
	requestKinds = []string{"get", "list", "watch", "version", "keyversions", "progress"}
)

func pick[T any](g *generator, from ...T) T { return from[g.rand.IntN(len(from))] }

// chance is true n times of a hundred.
func (g *generator) chance(n int) bool { return g.rand.IntN(100) < n }

func (g *generator) add(o Operation) { g.out = append(g.out, o) }

// mood decides what kind of trouble the schedule has: none, or some kinds that
// then come often enough to meet each other. Most schedules are short, for each seed
// has a cache of its own in a setup of its own; some states come about in long ones
// only.
func (g *generator) mood() {
	g.length = 8 + g.rand.IntN(22)
	if g.chance(25) {
		g.length += g.rand.IntN(40)
	}
	add := func(weight int, make func() Operation) {
		g.weights = append(g.weights, weighted{weight, make})
		g.total += weight
	}
	add(20, g.put)
	add(8, g.remove)
	add(6, g.txn)
	add(3, g.fill)
	add(3, g.touch)
	add(5, g.through)
	add(14, g.elapse)
	add(14, g.watch)
	add(8, g.list)
	add(6, g.get)
	add(6, g.next)
	add(5, g.stall)
	add(3, g.take)
	add(2, g.leave)
	add(2, g.leaveRead)
	add(1, g.compact)
	add(1, func() Operation { return Operation{Verb: "progress"} })
	if g.kind == Deterministic {
		if g.chance(15) {
			add(3, g.setClock)
		}
		if g.kept = g.chance(15); g.kept {
			add(4, g.fill)
			add(30, g.encoded)
		}
	}
	if g.chance(20) {
		return
	}
	faults := []weighted{
		{6, g.holdEvents}, {5, g.holdRevision}, {6, g.breakWatches}, {4, g.hang}, {5, g.fail}, {5, g.holdRequests},
		{3, g.restore}, {2, g.overtake}, {2, g.skip}, {3, g.corrupt}, {3, g.poison}, {4, g.compact}, {2, g.restart}, {4, g.relist},
	}
	for range 2 + g.rand.IntN(4) {
		f := pick(g, faults...)
		add(f.weight, f.make)
	}
	add(14, g.release)
}

func (g *generator) step() {
	n := g.rand.IntN(g.total)
	for _, w := range g.weights {
		if n -= w.weight; n < 0 {
			if o := w.make(); o.Verb != "" {
				g.add(o)
			}
			return
		}
	}
}

func (g *generator) start() {
	s := &g.setup
	s.Buffer = pick(g, 0, 0, 1, 2, 4)
	s.Budget = pick(g, 0, 0, -1, time.Millisecond, 100*time.Millisecond)
	s.Bookmarks = pick(g, 0, 0, time.Second, 5*time.Second, 5*time.Second)
	s.History = pick(g, 0, 0, time.Second, 10*time.Second)
	s.WindowBytes = pick[int64](g, 0, 0, 0, 1, 2000, 20_000)
	s.Idle = pick(g, 0, 0, 0, 0, 5*time.Second)
	s.Checks = pick(g, 30*time.Second, 30*time.Second, time.Minute)
	s.NoProgress, s.Lazy = g.chance(8), g.chance(8)
	s.NoStale, s.GetFromStorage, s.Indexes = g.chance(20), g.chance(8), g.chance(60)
	if g.kept {
		s.Keep = pick[int64](g, 0, 0, 1500, 4000, 12_000)
	}
	s.Recall, s.Rounds = g.recall, g.rounds
	g.add(Operation{Verb: "start", Setup: *s})
}

func (g *generator) attrs() (out []string) {
	if c := pick(g, colors...); c != "" {
		out = append(out, "color="+c)
	}
	if s := pick(g, sizes...); s != "" {
		out = append(out, "size="+s)
	}
	if n := pick(g, nodes...); n != "" {
		out = append(out, "spec.nodeName="+n)
	}
	return out
}

func (g *generator) put() Operation {
	return Operation{Verb: "put", Writes: []Write{{Name: pick(g, names...), Attrs: g.attrs()}}}
}

func (g *generator) remove() Operation {
	return Operation{Verb: "remove", What: pick(g, names...)}
}

// txn makes several writes at one resourceVersion, of different objects.
func (g *generator) txn() Operation {
	o := Operation{Verb: "txn"}
	for _, i := range g.rand.Perm(len(names))[:2+g.rand.IntN(3)] {
		if g.chance(35) {
			o.Writes = append(o.Writes, Write{Name: names[i], Delete: true})
		} else {
			o.Writes = append(o.Writes, Write{Name: names[i], Attrs: g.attrs()})
		}
	}
	return o
}

func (g *generator) fill() Operation {
	sizes := []int{8, 8, 8, 40, 140}
	if g.kind == Deterministic {
		sizes = []int{8, 8, 8, 8, 8, 8, 8, 40, 140} // each write costs as much as an operation
	}
	o := Operation{Verb: "fill", What: pick(g, namespaces...), N: 2 + g.rand.IntN(pick(g, sizes...))}
	if g.kind == Deterministic {
		o.Words = []string{"slowly"} // each write comes to rest
	}
	return o
}

// through is a write that a client of the cache makes.
func (g *generator) through() Operation {
	name := pick(g, names...)
	switch verb := pick(g, "create", "update", "update", "delete"); verb {
	case "delete":
		return Operation{Verb: verb, What: name}
	default:
		return Operation{Verb: verb, Writes: []Write{{Name: name, Attrs: g.attrs()}}}
	}
}

func (g *generator) touch() Operation { return Operation{Verb: "touch", N: 1 + g.rand.IntN(5)} }

func (g *generator) elapse() Operation {
	const long = 70 * time.Second
	pauses := []time.Duration{20 * time.Millisecond, 200 * time.Millisecond, time.Second, 2 * time.Second, 3500 * time.Millisecond, 6 * time.Second, 12 * time.Second}
	if g.chance(3) { // a second costs as much to run as one of a short pause
		return Operation{Verb: "elapse", For: long}
	}
	return Operation{Verb: "elapse", For: pick(g, pauses...)}
}

// version is a resourceVersion of any kind: none, 0, old, current, to come.
func (g *generator) version() Version {
	switch g.rand.IntN(10) {
	case 0, 1:
		return Version{}
	case 2, 3:
		return Version{Set: true}
	case 4, 5, 6:
		return Version{Set: true, Relative: true}
	case 7:
		return Version{Set: true, Relative: true, Value: 1 + g.rand.IntN(3)}
	case 8:
		return Version{Set: true, Relative: true, Value: -g.rand.IntN(200)}
	}
	return Version{Set: true, Relative: true, Value: -1 - g.rand.IntN(8)}
}

func (g *generator) query() (q Query) {
	switch g.rand.IntN(5) {
	case 0, 1:
	case 2, 3:
		q.In = pick(g, namespaces...) + "/"
	case 4:
		q.In, q.One = pick(g, names...), true
	}
	if g.chance(40) {
		q.Labels = pick(g, selectors...)
	}
	if g.chance(25) {
		q.Fields = pick(g, fieldSelectors...)
	}
	return q
}

func (g *generator) client(prefix string) string {
	g.clients++
	return fmt.Sprintf("%s%d", prefix, g.clients)
}

func (g *generator) watch() Operation {
	o := Operation{Verb: "watch", What: g.client("w"), At: g.version(), Query: g.query()}
	o.Query.Initial = pick(g, "", "", "yes", "no")
	o.Query.Bookmarks = g.chance(60)
	o.Query.Silent = g.chance(12)
	if g.chance(10) {
		o.For = pick(g, 3700*time.Millisecond, 21300*time.Millisecond)
	}
	g.watches = append(g.watches, o.What)
	return o
}

func (g *generator) list() Operation {
	o := Operation{Verb: "list", What: g.client("r"), At: g.version(), Query: g.query()}
	if o.At.Set && o.At != (Version{Set: true}) {
		o.Query.Match = pick(g, "", "Exact", "Exact", "NotOlderThan")
	}
	if g.chance(45) {
		o.Query.Limit = 1 + g.rand.IntN(4)
		g.reads = append(g.reads, o.What)
	}
	g.asked = append(g.asked, o.What)
	return o
}

// encoded is a list of some objects that is sent to a client. Often it is the same
// as one before.
func (g *generator) encoded() Operation {
	o := Operation{Verb: "list", What: g.client("r"), At: pick(g, Version{}, Version{Set: true}, Version{Set: true, Relative: true})}
	if len(g.before) > 0 && g.chance(70) {
		o.Query = pick(g, g.before...)
		return o
	}
	o.Query.Encoded = pick(g, "json", "protobuf")
	if g.chance(40) {
		o.Query.In = pick(g, namespaces...) + "/"
	}
	switch {
	case g.chance(10):
		o.Query.Labels = pick(g, selectors...)
	case g.chance(10):
		o.Query.Limit = 4 + g.rand.IntN(12)
		g.reads = append(g.reads, o.What)
	}
	g.asked, g.before = append(g.asked, o.What), append(g.before, o.Query)
	return o
}

// setClock sets the time of day.
func (g *generator) setClock() Operation {
	return Operation{Verb: "clock", What: pick(g, "+24h", "-24h", "+1m", "-1m", "+3s", "-3s")}
}

// next continues a list.
func (g *generator) next() Operation {
	if len(g.reads) == 0 {
		return g.list()
	}
	o := Operation{Verb: "list", What: g.client("r")}
	o.Query.From, o.Query.Limit = pick(g, g.reads...), g.rand.IntN(3)
	g.reads = append(g.reads, o.What)
	return o
}

func (g *generator) get() Operation {
	o := Operation{Verb: "get", What: g.client("r"), At: g.version(), Query: Query{In: pick(g, names...), One: true}}
	g.asked = append(g.asked, o.What)
	return o
}

func (g *generator) stall() Operation {
	if len(g.watches) == 0 {
		return g.watch()
	}
	return Operation{Verb: pick(g, "hold", "release"), What: pick(g, g.watches...)}
}

func (g *generator) take() Operation {
	if len(g.watches) == 0 {
		return g.watch()
	}
	return Operation{Verb: "take", What: pick(g, g.watches...), N: 1 + g.rand.IntN(4)}
}

func (g *generator) leave() Operation {
	if len(g.watches) == 0 {
		return g.watch()
	}
	return Operation{Verb: pick(g, "end", "cancel"), What: pick(g, g.watches...)}
}

// leaveRead has one of the last reads end before its answer, if it has none yet.
func (g *generator) leaveRead() Operation {
	if len(g.asked) == 0 {
		return g.get()
	}
	return Operation{Verb: "cancel", What: pick(g, g.asked[max(0, len(g.asked)-3):]...)}
}

// The faults.

func (g *generator) fault(name string, o Operation) Operation {
	g.faults = append(g.faults, name)
	return o
}

func (g *generator) holdEvents() Operation {
	return g.fault("events", Operation{Verb: "hold", What: "events"})
}

func (g *generator) holdRevision() Operation {
	return g.fault("revision", Operation{Verb: "hold", What: "revision", At: Version{Set: true, Relative: true, Value: 1}, N: 1 + g.rand.IntN(2)})
}

func (g *generator) breakWatches() Operation {
	o := Operation{Verb: "break"}
	if how := pick(g, "", "", "unavailable", "no-leader", "expired", "unknown"); how != "" {
		o.Words = append(o.Words, how)
		if g.chance(30) {
			o.Words = append(o.Words, "always")
			g.faults = append(g.faults, "break")
		}
	}
	return o
}

// relist has a watch of the storage broken, and what it needs compacted.
func (g *generator) relist() Operation {
	g.add(Operation{Verb: "hold", What: "events"})
	for range 1 + g.rand.IntN(4) {
		g.add(pick(g, g.put, g.remove, g.txn)())
	}
	g.add(Operation{Verb: "break"})
	g.add(Operation{Verb: "compact", At: Version{Set: true, Relative: true}})
	return Operation{Verb: "release", What: "events"}
}

func (g *generator) hang() Operation {
	o := Operation{Verb: "hang", N: g.rand.IntN(3)}
	if g.chance(30) {
		o.Words = []string{"stale"}
	}
	return g.fault("hang", o)
}

func (g *generator) fail() Operation {
	kind := pick(g, requestKinds...)
	return g.fault(kind, Operation{Verb: "fail", What: kind})
}

func (g *generator) holdRequests() Operation {
	kind := pick(g, requestKinds...)
	return g.fault(kind, Operation{Verb: "hold", What: kind})
}

func (g *generator) restore() Operation {
	return Operation{Verb: "restore", At: Version{Set: true, Relative: true, Value: -1 - g.rand.IntN(6)}}
}

// overtake has the storage go back, and then past the version that it had reached,
// before the cache can find out by a version that falls.
func (g *generator) overtake() Operation {
	back := 1 + g.rand.IntN(6)
	g.add(Operation{Verb: "hold", What: "events"})
	g.add(Operation{Verb: "restore", At: Version{Set: true, Relative: true, Value: -back}})
	for range back + g.rand.IntN(3) {
		g.add(pick(g, g.put, g.put, g.remove, g.txn, g.through)())
	}
	g.add(Operation{Verb: "touch", N: 1 + g.rand.IntN(back)})
	g.add(g.breakWatches())
	return Operation{Verb: "release", What: "events"}
}

func (g *generator) skip() Operation {
	g.add(Operation{Verb: "hold", What: "events"})
	g.add(g.put())
	g.add(Operation{Verb: "skip"})
	return Operation{Verb: "release", What: "events"}
}

func (g *generator) corrupt() Operation {
	return g.fault("corrupt", Operation{Verb: "corrupt"})
}

func (g *generator) poison() Operation {
	g.add(g.fault("poison", Operation{Verb: "poison"}))
	return Operation{Verb: "put", Writes: []Write{{Name: pick(g, names...), Attrs: append(g.attrs(), "poison=yes")}}}
}

func (g *generator) compact() Operation {
	return Operation{Verb: "compact", At: Version{Set: true, Relative: true, Value: -g.rand.IntN(8)}}
}

// restart stops the cache and starts another one.
func (g *generator) restart() Operation {
	if g.chance(30) {
		g.add(Operation{Verb: "stop"})
		g.add(pick(g, g.put, g.get, g.list, g.watch)())
	}
	return Operation{Verb: "start", Setup: g.setup}
}

func (g *generator) release() Operation {
	if len(g.faults) == 0 {
		return g.elapse()
	}
	i := g.rand.IntN(len(g.faults))
	what := g.faults[i]
	g.faults = append(g.faults[:i], g.faults[i+1:]...)
	return Operation{Verb: "release", What: what}
}
