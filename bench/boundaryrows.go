// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-watchcache/watchcache/bench/boundary"
)

// fullBoundary is the size that the goals of the boundary are for.
var fullBoundary = size{objects: 5000, seconds: 3, watchers: 100, repeats: 100, informers: 600, patience: full.patience}

var (
	withBoth  = []subject{shipped}
	withThree = []subject{installed, shipped}
	// The floor of the boundary writes the same bytes, with no cache and no filter.
	withFloor = []subject{installed, shipped, floor}
)

// The figures of what is asked over HTTPS.
const (
	figureCPU        = "CPU"
	figureCPULess    = "CPU less that of the changes"
	figureMedian     = "p50 at the client"
	figureP99        = "p99 at the client"
	figureWire       = "bytes received"
	figureResident   = "resident memory"
	figureHighest    = "highest resident memory"
	figureLive       = "live heap at the last collection"
	figureGoal       = "heap at which the next collection ends"
	figureIdle       = "heap that is free or in gaps"
	figureKept       = "kept serializations"
	figureChanges    = "changes a second"
	figureScaledJSON = "CPU, JSON"
	figureScaledGzip = "CPU, gzip"
)

// atRest is the figures of requests while nothing changes.
func atRest(g goal) []figure {
	return []figure{
		{name: figureCPU, unit: nanoseconds, goal: g},
		{name: figureMedian, unit: nanoseconds, goal: noGoal()},
		{name: figureP99, unit: nanoseconds, goal: noGoal()},
		{name: figureWire, unit: octets, goal: noGoal()},
		{name: figureResident, unit: octets, goal: noGoal()},
	}
}

// amongChanges is the figures of requests while objects change.
func amongChanges(g goal) []figure {
	all := slices.Concat([]figure{{name: figureCPULess, unit: nanoseconds, goal: g}}, atRest(noGoal()))
	return append(all, figure{name: figureChanges, unit: count, goal: noGoal()})
}

// boundaryTable is the rows over HTTPS. Those of many objects come last.
func boundaryTable(o servers, s size) []row {
	return slices.Concat(listRows(o), o.otherForms(), watchRows(o), memoryOfServers(o), restartRows(o, s), inUseRows(o, s), scaleRows(o, s))
}

// fromCache asks for all devices as the cache has them.
func fromCache(path, accept string, gzip bool) boundary.Request {
	return boundary.Request{Path: path, Accept: accept, Gzip: gzip, Query: url.Values{"resourceVersion": {"0"}}}
}

// listRows is plain lists, with and without changes.
func listRows(o servers) []row {
	var rows []row
	for _, kind := range []struct {
		name        string
		gzip        bool
		goal, among goal
	}{
		{"LIST rv=0, JSON", false, ofShipped(0.2), ofShipped(0.35)},
		{"LIST rv=0, JSON, gzip", true, ofShipped(0.1), noGoal()},
	} {
		request := fromCache(boundary.V1, boundary.JSON, kind.gzip)
		rows = append(rows, row{
			name: kind.name, figures: atRest(kind.goal), subjects: withFloor,
			open: listing{servers: o, request: request, repeats: 24}.open,
		})
		for _, changes := range []int{100, 1000} {
			g := noGoal()
			if changes == 1000 {
				g = kind.among
			}
			rows = append(rows, row{
				name: fmt.Sprintf("%s, %s changes/s, 4 lists/s", kind.name, thousands(changes)), figures: amongChanges(g), subjects: withBoth,
				open: listing{servers: o, request: request, repeats: 24, changes: changes, perSecond: 4}.open,
			})
		}
	}
	request := fromCache(boundary.V1, boundary.JSON, false)
	return append(rows, row{
		name:    "LIST rv=0, JSON, 1,000 changes/s, 4 lists/s, after 5 s without lists",
		figures: amongChanges(noGoal()), subjects: withBoth,
		open: listing{servers: o, request: request, repeats: 24, changes: 1000, perSecond: 4, away: true}.open,
	})
}

// otherForms is lists in other forms than plain JSON of the stored version.
func (o servers) otherForms() []row {
	return []row{{
		name: "LIST rv=0, Table", figures: atRest(ofShipped(0.5)), subjects: withBoth,
		open: listing{servers: o, request: fromCache(boundary.V1, boundary.Table, false), repeats: 24}.open,
	}, {
		name: "LIST rv=0, Table, gzip (kubectl get)", figures: atRest(noGoal()), subjects: withBoth,
		open: listing{servers: o, request: fromCache(boundary.V1, boundary.Table, true), repeats: 24}.open,
	}, {
		name: "LIST rv=0, PartialObjectMetadataList, JSON", figures: atRest(ofShipped(0.4)), subjects: []subject{shipped, floor},
		open: listing{servers: o, request: fromCache(boundary.V1, boundary.PartialMetadata, false), repeats: 24}.open,
	}, {
		name: "LIST rv=0, PartialObjectMetadataList, protobuf", figures: atRest(ofShipped(0.4)), subjects: []subject{shipped, floor},
		open: listing{servers: o, request: fromCache(boundary.V1, boundary.PartialMetadataProtobuf, false), repeats: 24}.open,
	}, {
		name: "LIST in pages of 500, a page", figures: atRest(ofShipped(0.3)), subjects: withBoth,
		open: listing{servers: o, request: boundary.Request{Path: boundary.V1, Accept: boundary.JSON}, pages: true, repeats: 6}.open,
	}, {
		name: "LIST rv=0, JSON, the other served version", figures: atRest(ofShipped(0.25)), subjects: withBoth,
		open: listing{servers: o, request: fromCache(boundary.V1Beta1, boundary.JSON, false), repeats: 24}.open,
	}}
}

func watchRows(o servers) []row {
	return []row{{
		name: "watch with the initial state, 20 at once", figures: atRest(ofShipped(0.2)), subjects: withThree,
		open: beginning{servers: o, watchers: 20, repeats: 4}.open,
	}, {
		name: "watch with the initial state, gzip, 20 at once", figures: atRest(noGoal()), subjects: withBoth,
		open: beginning{servers: o, watchers: 20, repeats: 4, gzip: true}.open,
	}, {
		name: "an event to 200 watchers, 20/s", figures: atRest(ofShipped(0.7)), subjects: withFloor,
		open: delivery{servers: o, watchers: 200, perSecond: 20, events: 120}.open,
	}, {
		name: "an event to 200 watchers that began with the state of a label, gzip, 20/s", figures: atRest(noGoal()), subjects: withBoth,
		open: delivery{servers: o, watchers: 200, perSecond: 20, events: 120, gzip: true}.open,
	}}
}

func memoryOfServers(o servers) []row {
	figures := []figure{
		{name: figureResident, unit: octets, goal: ofShipped(1)},
		{name: figureHighest, unit: octets, goal: noGoal()},
		{name: figureLive, unit: octets, goal: noGoal()},
		{name: figureGoal, unit: octets, goal: noGoal()},
		{name: figureIdle, unit: octets, goal: noGoal()},
		{name: figureKept, unit: octets, goal: noGoal()},
	}
	return []row{
		{name: "memory of the server after lists", figures: figures, subjects: withThree, open: resident{servers: o}.open},
		{name: "memory of the server after lists, etcd inside", figures: figures, subjects: withThree, open: resident{servers: o, embedded: true}.open},
	}
}

// scaleRows is lists of a fifth of the objects to twenty times as many, which are
// plotted.
func scaleRows(o servers, s size) []row {
	var rows []row
	for _, percent := range []int{20, 100, 400, 2000} {
		n := s.of(s.objects, percent)
		rows = append(rows, row{
			name: fmt.Sprintf("LIST rv=0 of %s devices", thousands(n)),
			figures: []figure{
				{name: figureScaledJSON, unit: nanoseconds, goal: noGoal()},
				{name: figureScaledGzip, unit: nanoseconds, goal: noGoal()},
				{name: figureResident, unit: octets, goal: noGoal()},
			},
			subjects: withBoth,
			open:     scale{servers: o, objects: n}.open,
		})
	}
	return rows
}

// thousands writes 20000 as 20,000.
func thousands(n int) string {
	digits := strconv.Itoa(n)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}
