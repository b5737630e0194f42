// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/internal/rounds"
	"github.com/kube-watchcache/watchcache/internal/setclock"
)

// Result is what came of a schedule.
type Result struct {
	// Violation is the first promise that was broken, "" if none was.
	Violation string
	Trace     Trace
	// Operations were run, Events brought to watchers, and Reads answered.
	Operations, Events, Reads int
}

// Run runs a schedule in a bubble of virtual time. coverage may be nil.
func Run(t *testing.T, seed uint64, operations []Operation, coverage *Coverage) (result Result) {
	d := &driver{coverage: coverage}
	defer bySeed(seed)()
	defer func() {
		// Goroutines that never end make synctest panic, here.
		if p := recover(); p != nil {
			d.fail("the bubble can't end: %v", p)
		}
		result = d.result
	}()
	synctest.Test(t, func(*testing.T) {
		d.goroutines = runtime.NumGoroutine()
		d.run(operations)
	})
	return d.result
}

// driver runs one schedule: it acts on the storage, the cache and the clients,
// lets everything come to rest, and compares what the clients saw with the model.
type driver struct {
	coverage   *Coverage
	result     Result
	goroutines int

	store   *store
	history *history
	setup   Setup
	clock   *setclock.Clock
	keeping *keeping
	cacher  *cacher.Cacher
	stores  stores
	// caches counts the caches that were started; stopped: the last one is.
	caches  int
	stopped bool

	watches []*watching
	reads   []*reading

	faults faults
	// lost: the storage went back, or skipped events, when the cache had been filled
	// lostFills times; what clients see until the next fill is not promised.
	lost      bool
	lostFills int64
	// mendedUntil is until when a watch from up to mendedAt may get a 410, since the
	// storage was listed after a loss.
	mendedUntil time.Time
	mendedAt    uint64
	// twins are the objects whose last write has the version of another one that
	// is gone: nothing tells the two apart. A list shows the right one, but one that
	// carries watchers leaves what has the same version as it is.
	twins map[string]bool
	// undecodable counts the orders that make changes undecodable.
	undecodable int
	// restedFills is how often the cache had been filled when everything was last
	// at rest with no fault in force.
	restedFills int64
	// startFills is how often, when the cache was started.
	startFills int64

	// racing: operations come at once.
	racing bool
	// restless: an operation has not come to rest.
	restless bool

	// calmSince is since when the cache has had to do all that it promises, the zero
	// time if it has not.
	calmSince time.Time

	status cacher.Status
	looks  int       // how often the cache was asked for it
	told   condition // the last that is in the trace
}

// watching is a client that watches and what it may see; reading one that reads.
type watching struct {
	*watcher
	*watchRule
	cache int
}

type reading struct {
	*reader
	*readRule
	cache int
	done  bool
}

func (d *driver) fail(format string, args ...any) {
	if d.result.Violation == "" {
		d.result.Violation = fmt.Sprintf(format, args...)
		d.result.Trace.observed("VIOLATION", text(d.result.Violation))
	}
}

func (d *driver) failed() bool { return d.result.Violation != "" }

func (d *driver) run(operations []Operation) {
	d.store, d.history = newStore(), newHistory()
	d.clock, d.keeping = &setclock.Clock{}, newKeeping()
	d.faults.releases, d.twins = map[string]func(){}, map[string]bool{}
	d.racing = slices.ContainsFunc(operations, func(o Operation) bool { return o.Together })
	d.history.anyInParts = d.racing
	for i, o := range operations {
		if d.coverage != nil {
			d.coverage.reached(d.state(), o)
		}
		d.result.Trace.operation(i+1, happened{o, o.At.resolve(d.history.rv)})
		d.result.Operations++
		if !d.restless {
			// No two operations come at one instant, so that no two timers of theirs do.
			time.Sleep(time.Microsecond)
		}
		d.do(o)
		if o.Together && i+1 < len(operations) {
			d.restless = true
			continue
		}
		synctest.Wait()
		d.restless = false
		d.observe(o)
		if d.failed() {
			break
		}
	}
	d.finish()
}

// elapse lets virtual time pass.
func (d *driver) elapse(t time.Duration) {
	time.Sleep(t)
	synctest.Wait()
}

func (d *driver) start(setup Setup) {
	if d.cacher != nil {
		d.stop()
	}
	d.setup = setup
	d.store.noProgress.Store(setup.NoProgress)
	d.store.history.Store(setup.Recall)
	limits := rounds.Defaults // which no schedule reaches
	if setup.Rounds > 0 {
		limits = rounds.Limits{Watchers: 1, Queued: 2, Events: setup.Rounds, OneCore: true}
	}
	rounds.Set(limits)
	config := cacher.Config{
		Storage: d.store, Versioner: storage.APIObjectVersioner{}, GroupResource: poddata.Resource,
		ResourcePrefix: poddata.Prefix, KeyFunc: poddata.Key, GetAttrsFunc: d.store.attrs,
		NewFunc: poddata.New, NewListFunc: poddata.NewList, Codec: codec,
		WatchBuffer: setup.Buffer, WindowBytes: setup.WindowBytes, EventsHistoryWindow: setup.History, BookmarkInterval: setup.Bookmarks,
		IdleTimeout: setup.Idle, DispatchBudget: setup.Budget,
		ConsistencyCheckInterval: setup.Checks, LazyStart: setup.Lazy,
		ConsistentGetFromStorage: setup.GetFromStorage, Lists: d.keeping.lists,
	}
	if !d.racing {
		config.Clock, config.EncodingBytes = d.clock, setup.Keep
	}
	if setup.NoStale {
		config.MaxFallbackLists = -1
	}
	if setup.Indexes {
		config.IndexerFuncs, config.LabelIndexes = poddata.Triggers(), []string{"color"}
	}
	// Read before the cache begins, which a racing schedule may not see.
	d.startFills = d.store.fills.Load()
	c, err := d.stores.enter(func() (*cacher.Cacher, error) { return cacher.New(config) })
	if err != nil {
		d.fail("the cache does not start: %v", err)
		return
	}
	d.cacher, d.stopped = c, false
	d.caches++
	d.faults.starts()
	d.restedFills = d.startFills
	d.status = cacher.Status{}
	if d.lost {
		d.lostFills = d.startFills
	}
}

var codec = poddata.Codec()

// stop has all stores end, and the cache with the last one.
func (d *driver) stop() {
	if d.cacher == nil {
		return
	}
	for _, w := range d.watches {
		w.watchRule.stopped = true
	}
	for _, r := range d.reads {
		r.readRule.stopped = true
	}
	if d.stopped {
		d.cacher.Stop() // once more, which makes no difference
	}
	d.stores.leaveAll()
	d.stopped = true
}

// finish ends all faults, wants the cache to recover by itself and to equal its
// storage, and ends everything.
func (d *driver) finish() {
	d.faults.releaseAll()
	if d.lost {
		d.lostFills = d.store.fills.Load()
	}
	for _, w := range d.watches {
		d.setReading(w, true)
	}
	if d.cacher != nil && !d.stopped && !d.failed() {
		d.recover()
	}
	d.stop()
	synctest.Wait()
	if !d.failed() && d.cacher != nil {
		d.observe(Operation{Verb: "stop"})
		d.afterStop()
	}
	for _, w := range d.watches {
		w.cancel()
		w.watcher.stop()
	}
	for _, r := range d.reads {
		r.cancel()
	}
	synctest.Wait()
	for _, w := range d.watches {
		d.setReading(w, false)
	}
	synctest.Wait()
	d.leaks()
}

// recoveries is how many pauses of up to a minute there may be until the cache must
// have found out that its storage has another history.
const recoveries = 6

func (d *driver) recover() {
	for range recoveries {
		// No longer than it takes until no fault has an effect any more, if that is all
		// that there is to recover from.
		pause := time.Minute
		if trouble := time.Until(d.faults.calmFrom); !d.lost && d.status.Ready && trouble < pause {
			pause = max(10*time.Second, trouble+time.Second)
		}
		d.elapse(pause)
		d.observe(Operation{Verb: "elapse", For: pause})
		if d.failed() {
			return
		}
		if d.calm() {
			break
		}
	}
	if !d.status.Ready {
		d.fail("the cache does not recover: %s", d.status.NotReady)
		return
	}
	d.result.Trace.operation(0, text("the end: something is written once more, and everything read"))
	d.do(Operation{Verb: "put", Writes: []Write{{Name: "a/one", Attrs: []string{"color=red"}}}})
	synctest.Wait()
	if d.lost && len(d.twins) > 0 {
		return // the cache can't find out
	}
	if d.lost {
		// Events that were skipped are found out once the cache is past them, and
		// compares its state with that of the storage.
		d.elapse(2 * d.setup.Checks)
		d.observe(Operation{Verb: "elapse"})
		d.found()
	}
	for i, at := range []Version{{}, {Set: true}, {Set: true, Relative: true}} {
		d.do(Operation{Verb: "list", What: fmt.Sprintf("end%d", i), At: at})
	}
	d.do(Operation{Verb: "get", What: "end3", Query: Query{In: "a/one", One: true}})
	synctest.Wait()
	d.observe(Operation{Verb: "elapse", For: time.Minute})
	if d.failed() {
		return
	}
	for _, r := range d.reads {
		if !r.done && r.cache == d.caches {
			d.fail("%s has no answer in the end; the cache's last error is %v", r.reader.name, d.status.LastError)
		}
	}
}

// afterStop wants a stopped cache to answer at once.
func (d *driver) afterStop() {
	for _, w := range d.watches {
		if !w.over && w.answered && !w.refused && !d.failed() {
			d.fail("%s is open after Stop", w.watcher.name)
		}
	}
	for _, r := range d.reads {
		if !r.done && !d.failed() {
			d.fail("%s has no answer after Stop", r.reader.name)
		}
	}
	d.do(Operation{Verb: "list", What: "stopped1"})
	d.do(Operation{Verb: "get", What: "stopped2", Query: Query{In: "a/one", One: true}})
	d.do(Operation{Verb: "watch", What: "stopped3"})
	synctest.Wait()
	d.observe(Operation{Verb: "stop"})
	for _, r := range d.reads {
		if !r.done && !d.failed() {
			d.fail("%s is not answered by a stopped cache", r.reader.name)
		}
	}
}

// leaks wants no goroutine to be left.
func (d *driver) leaks() {
	if d.failed() || runtime.NumGoroutine() <= d.goroutines {
		return
	}
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	self, rest, _ := strings.Cut(string(stacks), "\n\n")
	_, bubble, _ := strings.Cut(self, "synctest bubble ")
	bubble, _, _ = strings.Cut(bubble, "]")
	for stack := range strings.SplitSeq(rest, "\n\n") {
		header, _, _ := strings.Cut(stack, "\n")
		if strings.Contains(header, "synctest bubble "+bubble+"]") &&
			!strings.Contains(stack, "testingSynctestTest") && !strings.Contains(stack, "internal/synctest.Run") {
			d.fail("a goroutine is left:\n%s", stack)
			return
		}
	}
}
