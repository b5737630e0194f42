// SPDX-License-Identifier: Apache-2.0

// The pauses of client-go and of the cache have a random part, which has to be the
// same each time that a schedule runs.
//go:debug randseednop=0

package simulation_test

import (
	"flag"
	"fmt"
	"io"
	"math/rand"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/internal/race"
	"github.com/kube-watchcache/watchcache/simulation"
)

var (
	seed      = flag.Uint64("seed", 0, "the schedule that TestReplay runs")
	racing    = flag.Bool("racing", false, "TestReplay, TestSoak: operations come at once")
	verbose   = flag.Bool("trace", false, "print the whole trace of a schedule that TestReplay runs or -list finds to fail, and what schedules reached")
	schedules = flag.Int("schedules", 0, "how many schedules each of the tests runs")
	all       = flag.Bool("all", false, "TestRacingSchedules: run as many schedules as make verify")
	first     = flag.Uint64("first", 1, "the first seed")
	last      = flag.Uint64("last", fewSchedules, "TestSchedules: the last seed")
	list      = flag.Bool("list", false, "print one line for each schedule that fails, and go on")
	soak      = flag.Bool("soak", false, "TestSoak runs until it is interrupted")
)

func TestMain(m *testing.M) {
	// The log about the faults is of no interest here.
	logging := flag.NewFlagSet("", flag.PanicOnError)
	klog.InitFlags(logging)
	if err := logging.Parse([]string{"-logtostderr=false", "-stderrthreshold=FATAL"}); err != nil {
		panic(err)
	}
	klog.SetOutput(io.Discard)
	flag.Parse()
	// A collection in the middle of a schedule takes time, and changes the order in
	// which goroutines run: see run.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(heapLimit)
	os.Exit(m.Run())
}

// The memory of schedules is collected after so many of them, or when there is more
// than the limit of it.
const (
	collectEvery = 100
	heapLimit    = 1 << 30
)

// collect collects the memory of the schedules so far, in the sight of some deep
// stacks: a collection decides how large the stacks of goroutines are at first, by the
// average of those that it finds. A schedule starts some hundred goroutines, and to
// have most of their stacks grow, once or twice each, takes a twelfth of its time.
func collect() {
	var deep, leave sync.WaitGroup
	leave.Add(1)
	for range deepStacks {
		deep.Add(1)
		go func() { descend(stackDepth, func() { deep.Done(); leave.Wait() }) }()
	}
	deep.Wait()
	runtime.GC()
	leave.Done()
}

const (
	deepStacks = 100
	stackDepth = 40
)

// descend calls a function with some 6 KB on the stack.
//
//go:noinline
func descend(depth int, call func()) byte {
	var frame [128]byte
	if depth == 0 {
		call()
		return frame[0]
	}
	return descend(depth-1, call) + frame[depth]
}

// ran counts the schedules of this process.
var ran int

// patience is how long one schedule may take of real time. A schedule that hangs
// ends the process, with all stacks.
const patience = 30 * time.Second

func run(t *testing.T, seed uint64, kind simulation.Kind, operations []simulation.Operation, coverage *simulation.Coverage) simulation.Result {
	watchdog := time.AfterFunc(patience, func() {
		stacks := make([]byte, 1<<24)
		fmt.Fprintf(os.Stderr, "seed %d hangs; %s\n%s", seed, replay(seed, kind), stacks[:runtime.Stack(stacks, true)])
		os.Exit(2)
	})
	defer watchdog.Stop()
	if ran%collectEvery == 0 {
		collect()
	}
	ran++
	seedRandom(seed)
	return simulation.Run(t, seed, operations, coverage)
}

// seedRandom seeds the random numbers of package wait of k8s.io/apimachinery.
func seedRandom(seed uint64) {
	//lint:ignore SA1019 Package wait takes them from the global source.
	rand.Seed(int64(seed))
}

// replay is the command that runs a seed again.
func replay(seed uint64, kind simulation.Kind) string {
	if simulation.Seeded {
		return fmt.Sprintf("make replay ARGS='-seed %d%s'", seed, map[simulation.Kind]string{simulation.Racing: " -racing"}[kind])
	}
	if kind == simulation.Racing {
		return fmt.Sprintf("go test -race ./simulation -run 'TestReplay$' -v -args -seed %d -racing", seed)
	}
	return fmt.Sprintf("go test ./simulation -run 'TestReplay$' -v -args -seed %d", seed)
}

// shrinks is how often a schedule that fails is tried again with less.
const shrinks = 300

// check runs the schedule of a seed. One that fails is shrunk and printed.
func check(t *testing.T, seed uint64, kind simulation.Kind, coverage *simulation.Coverage) simulation.Result {
	operations := simulation.Generate(seed, kind)
	result := run(t, seed, kind, operations, coverage)
	if result.Violation == "" {
		return result
	}
	if *list {
		fmt.Printf("seed %d: %s\n", seed, result.Violation)
		if *verbose {
			fmt.Print(&result.Trace)
		}
		assert.Fail(t, result.Violation, "seed %d", seed)
		return result
	}
	fails := func(operations []simulation.Operation) bool {
		return run(t, seed, kind, operations, nil).Violation != ""
	}
	small := simulation.Shrink(operations, shrinks, fails)
	again := run(t, seed, kind, small, nil)
	require.Fail(t, "a promise is broken", "seed %d: %s\n\nrun it again: %s\n\nshrunk to\n%s\nwhich gives\n%s\n%s",
		seed, result.Violation, replay(seed, kind), simulation.Script(small), &again.Trace, again.Violation)
	return result
}

// make test runs fewRacing schedules, make quick fewSchedules, which find most bugs in
// seconds. make verify runs 60,000 deterministic schedules and racingSchedules: two cores
// need some two minutes. A racing one costs seven times as much, with the race detector.
const (
	fewSchedules    = 4000
	fewRacing       = 3000
	racingSchedules = 12_000
)

func checkAll(t *testing.T, n int, kind simulation.Kind) {
	if *schedules > 0 {
		n = *schedules
	}
	if n == 0 {
		t.Skip("deterministic schedules run without the race detector, which schedules at random, and racing ones with it; " +
			"make soak runs both until it is stopped; -schedules N runs some here")
	}
	var total simulation.Result
	coverage := &simulation.Coverage{}
	for s := *first; s < *first+uint64(n); s++ {
		r := check(t, s, kind, coverage)
		total.Operations += r.Operations
		total.Events += r.Events
		total.Reads += r.Reads
	}
	t.Logf("%d schedules, %d operations, %d watch events and %d reads checked", n, total.Operations, total.Events, total.Reads)
	if *verbose {
		fmt.Print(coverage.Report())
	}
}

// TestSchedules runs schedules whose operations follow each other, each as it runs
// everywhere: see TestSameSeedSameTrace.
func TestSchedules(t *testing.T) {
	n := int(*last - *first + 1)
	if race.Enabled {
		n = 0
	} else {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	}
	checkAll(t, n, simulation.Deterministic)
}

// TestRacingSchedules runs schedules whose operations come several at a time, so
// that the goroutines of the cache race each other.
func TestRacingSchedules(t *testing.T) {
	n := 0
	switch {
	case *all:
		n = racingSchedules
	case race.Enabled:
		n = fewRacing
	}
	defer processors(simulation.Racing)()
	checkAll(t, n, simulation.Racing)
}

// processors has schedules of a kind run on the processors that they need until end is
// called: on one, but for racing ones that nothing else schedules. With two, the race
// detector crashes the process when two goroutines of a bubble look at their timers at
// the same time (go.dev/issue/78156).
func processors(kind simulation.Kind) (end func()) {
	if kind == simulation.Racing && !simulation.Seeded && !race.Enabled {
		return func() {}
	}
	before := runtime.GOMAXPROCS(1)
	return func() { runtime.GOMAXPROCS(before) }
}

// TestSameSeedSameTrace runs seeds twice, racing ones too where goroutines are
// scheduled by the seed. Elsewhere one processor, and no race detector, which picks the
// next goroutine at random, has Go's scheduler do the same each time between two points
// of rest, but for a select of several channels that are ready.
func TestSameSeedSameTrace(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector schedules goroutines at random; make verify runs this in its step 'simulation'")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	kinds := []simulation.Kind{simulation.Deterministic}
	if simulation.Seeded {
		kinds = append(kinds, simulation.Racing)
	}
	n := uint64(100)
	if *schedules > 0 {
		n = uint64(*schedules)
	}
	for s := *first; s < *first+n; s++ {
		for _, kind := range kinds {
			operations := simulation.Generate(s, kind)
			require.Equal(t, simulation.Script(operations), simulation.Script(simulation.Generate(s, kind)), "seed %d", s)
			one, two := run(t, s, kind, operations, nil), run(t, s, kind, operations, nil)
			require.Equal(t, one.Trace.String(), two.Trace.String(), "seed %d", s)
		}
	}
}

// TestSeedsOfSoak runs the schedules that make soak has found to fail.
func TestSeedsOfSoak(t *testing.T) {
	if !simulation.Seeded {
		t.Skip("goroutines are scheduled by the seed only with the runtime of hack/seeded; make verify runs this in its step 'simulation'")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for kind, seeds := range map[simulation.Kind][]uint64{
		simulation.Deterministic: {10148264, 20059085, 20099007},
		simulation.Racing:        {20050859, 30172484},
	} {
		for _, s := range seeds {
			check(t, s, kind, nil)
		}
	}
}

// TestReplay runs the schedule of -seed.
func TestReplay(t *testing.T) {
	if *seed == 0 {
		t.Skip("there is no -seed to run again")
	}
	kind := simulation.Deterministic
	if *racing {
		kind = simulation.Racing
	}
	defer processors(kind)()
	if *verbose {
		r := run(t, *seed, kind, simulation.Generate(*seed, kind), nil)
		fmt.Printf("%s%s", &r.Trace, r.Violation)
	}
	check(t, *seed, kind, nil)
}

// TestSoak runs schedules of both kinds until it is interrupted, and prints what
// they have reached.
func TestSoak(t *testing.T) {
	if !*soak {
		t.Skip("make soak runs it")
	}
	defer processors(simulation.Racing)()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt)
	defer signal.Stop(stop)
	coverage := &simulation.Coverage{}
	began, total, n := time.Now(), simulation.Result{}, 0
	report := func() {
		took := time.Since(began)
		fmt.Printf("%d schedules in %v, %.0f a second; %d operations, %d watch events and %d reads checked\n",
			n, took.Round(time.Second), float64(n)/took.Seconds(), total.Operations, total.Events, total.Reads)
	}
	every := time.NewTicker(time.Minute)
	defer every.Stop()
	defer func() {
		report()
		fmt.Print(coverage.Report())
	}()
	for s := *first; *schedules == 0 || n < *schedules; s++ {
		for _, kind := range []simulation.Kind{simulation.Deterministic, simulation.Racing} {
			r := check(t, s, kind, coverage)
			n++
			total.Operations += r.Operations
			total.Events += r.Events
			total.Reads += r.Reads
		}
		select {
		case <-stop:
			return
		case <-every.C:
			report()
		default:
		}
	}
}
