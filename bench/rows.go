// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strconv"
)

// table is every row. Memory comes first: once many goroutines have needed
// larger stacks, Go gives each new one a larger stack to begin with. Stop comes
// last: a shipped cacher that hangs is left behind.
func table() []row {
	return slices.Concat(memoryRows(), heapRows(), dispatchRows(), readRows(), replaceRows(), startAndStopRows())
}

var (
	withShipped         = []subject{shipped}
	withShippedAndFloor = []subject{shipped, floor}
)

func cpu(g goal) []figure { return []figure{{unit: nanoseconds, goal: g}} }

// event is the figures of dispatch.
func event(g goal) []figure {
	return []figure{
		{name: "CPU less pacing", unit: nanoseconds, goal: g},
		{name: "CPU", unit: nanoseconds, goal: noGoal()},
		{name: "watchers closed", unit: count, goal: atMost(0)},
	}
}

func dispatchRows() []row {
	return []row{{
		name: "one event, no watchers, 60/s", figures: event(noGoal()), subjects: withShippedAndFloor,
		open: dispatch{rate: 60, classes: 1, selector: byNothing, mark: markNothing}.open,
	}, {
		name: "one event, 10,000 label watchers (100 selectors), 100 match, 60/s", figures: event(timesLess(100)), subjects: withShippedAndFloor,
		open: dispatch{watchers: 10_000, classes: 100, rate: 60, selector: byLabel, mark: markLabel}.open,
	}, {
		name: "one event, 10,000 label watchers (10,000 selectors), 100 match, 60/s", figures: event(noGoal()), subjects: withShippedAndFloor,
		open: dispatch{watchers: 10_000, classes: 100, rate: 60, selector: byLabelAlone, mark: markLabel}.open,
	}, {
		name:     "one event, 1,000 watchers each pinning an un-indexed field, 1 matches, 500/s",
		figures:  append(event(timesLess(6)), figure{name: "candidates touched", unit: count, goal: atMost(1)}),
		subjects: withShippedAndFloor,
		open:     dispatch{watchers: 1000, classes: 1000, rate: 500, selector: byNode, mark: markNode, candidates: true}.open,
	}, {
		name: "one event, 10,000 watchers, all match, 60/s", figures: event(ofFloor(1.5)), subjects: withShippedAndFloor,
		open: dispatch{watchers: 10_000, classes: 1, rate: 60, selector: byNothing, mark: markNothing}.open,
	}, {
		name: "one event, 1,000 watchers, all match, 500/s", figures: event(ofFloor(1.5)), subjects: withShippedAndFloor,
		open: dispatch{watchers: 1000, classes: 1, rate: 500, selector: byNothing, mark: markNothing}.open,
	}, {
		name: "20,000 events at full speed, 100 healthy watchers",
		figures: []figure{
			{name: "closed", unit: count, goal: atMost(0)},
			{name: "% lost", unit: count, goal: atMost(0)},
		},
		subjects: withShipped,
		open:     burst{watchers: 100}.open,
	}, {
		name: "20,000 events at full speed, 10 of 1,000 watchers never read", figures: neverReadingFigures(), subjects: withShipped,
		open: neverReading{watchers: 1000, stalled: 10}.open,
	}, {
		name: "1,000 events at 500/s, 10 of 1,000 watchers never read", figures: neverReadingFigures(), subjects: withShipped,
		open: neverReading{watchers: 1000, stalled: 10, rate: 500}.open,
	}}
}

func neverReadingFigures() []figure {
	return []figure{
		{name: "healthy closed", unit: count, goal: atMost(0)},
		{name: "% lost by healthy", unit: count, goal: atMost(0)},
		{name: "healthy p99 latency", unit: nanoseconds, goal: noGoal()},
		{name: "p99 to that without them", unit: ratio, goal: goal{most: 1.2, byMedian: true}},
		{name: "CPU to that without them", unit: ratio, goal: noGoal()},
	}
}

func readRows() []row {
	pages := reading{repeats: 20, options: plain, read: readPages}
	return []row{{
		name: "GET rv=0", figures: cpu(timesLess(5)), subjects: withShippedAndFloor,
		open: reading{repeats: 100_000, options: plain, read: readOne, least: copyOne}.open,
	}, {
		name: "LIST rv=0, all", figures: cpu(ofFloor(1.15)), subjects: withShippedAndFloor,
		open: reading{repeats: 40, options: plain, read: readAll, least: copyAll}.open,
	}, {
		name: "LIST by label, 1 % match, no index", figures: cpu(ofShipped(1)), subjects: withShippedAndFloor,
		open: reading{repeats: 40, options: noIndex, read: readLabel, least: copyHundredth}.open,
	}, {
		name: "LIST by label, 1 % match, adaptive index in ours", figures: cpu(timesLess(15)), subjects: withShippedAndFloor,
		open: reading{repeats: 4000, options: plain, adapts: true, read: readLabel, least: copyHundredth}.open,
	}, {
		name: "LIST by label, 1 % match, label index in ours", figures: cpu(timesLess(20)), subjects: withShippedAndFloor,
		open: reading{repeats: 4000, options: ourLabelIndex, read: readLabel, least: copyHundredth}.open,
	}, {
		name: "LIST by label, 1 % match, label index in both", figures: cpu(noGoal()), subjects: withShippedAndFloor,
		open: reading{repeats: 4000, options: bothLabelIndex, read: readLabel, least: copyHundredth}.open,
	}, {
		name: "LIST of one namespace of 100", figures: cpu(ofShipped(0.5)), subjects: withShippedAndFloor,
		open: reading{repeats: 4000, options: plain, read: readNamespace, least: copyHundredth}.open,
	}, {
		name: "full walk in pages of 500, consistent", figures: cpu(ofShipped(0.7)), subjects: withShipped,
		open: pages.open,
	}, {
		name: "64 consistent LISTs of one object at once, round trip 10 ms", figures: requestsAndCPU(), subjects: withShipped,
		open: consistent{readers: 64, repeats: 50, read: listOneConsistently}.open,
	}, {
		name: "64 consistent GETs at once, round trip 10 ms", figures: requestsAndCPU(), subjects: withShipped,
		open: consistent{readers: 64, repeats: 50, read: readOneConsistently}.open,
	}}
}

// requestsAndCPU allows for two requests: readers that come while the first one
// is under way share a second one.
func requestsAndCPU() []figure {
	return []figure{
		{name: "requests to storage", unit: count, goal: atMost(2)},
		{name: "CPU of one", unit: nanoseconds, goal: noGoal()},
	}
}

func replaceRows() []row {
	return []row{{
		name: "Replace of a store in memory that has five times the objects, 1 % changed",
		figures: []figure{
			{name: "CPU", unit: nanoseconds, goal: ofFloor(3)},
			{name: "allocations", unit: count, goal: noGoal()},
		},
		subjects: []subject{floor},
		open:     replacing{repeats: 20}.open,
	}}
}

func memoryRows() []row {
	return []row{{
		name: "idle watcher, with its client's goroutine and context",
		figures: []figure{
			{name: "memory", unit: octets, goal: atMost(4000)},
			{name: "of it heap", unit: octets, goal: noGoal()},
			{name: "goroutines", unit: count, goal: atMost(1.01)},
		},
		subjects: withShippedAndFloor,
		open:     idle{watchers: 10_000}.open,
	}, {
		name: "heap per object beyond the decoded object", figures: []figure{{unit: octets, goal: atMost(350)}}, subjects: withShipped,
		open: perObject,
	}, {
		name: "heap per window event beyond its objects", figures: []figure{{unit: octets, goal: atMost(300)}}, subjects: withShipped,
		open: perEvent,
	}}
}

func startAndStopRows() []row {
	resumption := func(by string, selector func(i int) (label, field string)) row {
		return row{
			name: "5,000 watchers resume 5,000 events back, each by " + by, figures: cpu(ofShipped(0.15)), subjects: withShipped,
			open: resuming{watchers: 5000, events: 5000, selector: selector}.open,
		}
	}
	return append(slices.Concat(readyRows(), manyCachesRows(), manyReadsRows()), []row{{
		name: "event to a watcher while 200 others a second start at rv=0 and don't read",
		figures: []figure{
			{name: "median latency", unit: nanoseconds, goal: noGoal()},
			{name: "to that with a tenth of the objects", unit: ratio, goal: goal{most: 1.2, byMedian: true}},
		},
		subjects: withShipped,
		open:     heldUp{events: 2000, startRate: 200}.open,
	}, {
		name: "start of a watcher of one namespace of 100 at rv=0, with its initial events",
		figures: []figure{
			{name: "CPU", unit: nanoseconds, goal: ofShipped(0.5)},
			{name: "allocations", unit: count, goal: ofShipped(0.5)},
		},
		subjects: withShipped,
		open:     namespaced{repeats: 100}.open,
	},
		resumption("one of 100 labels", func(i int) (label, field string) { return appLabel + "=" + appName(i), "" }),
		resumption("a label of its own", func(i int) (label, field string) { return ownLabel + "=" + strconv.Itoa(i), "" }),
		resumption("one of 1,000 fields", func(i int) (label, field string) { return "", "spec.nodeName=node-" + strconv.Itoa(i%1000) }),
		{
			name: "Stop in the middle of 20,000 events, 10 of 1,000 watchers never read",
			figures: []figure{
				{name: "hung", unit: count, goal: atMost(0)},
				{name: "time on the wall", unit: nanoseconds, goal: noGoal()},
				{name: "goroutines left", unit: count, goal: atMost(0)},
			},
			subjects: withShipped,
			open:     stopping{watchers: 1000, stalled: 10}.open,
		}}...)
}
