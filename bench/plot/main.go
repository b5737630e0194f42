// SPDX-License-Identifier: Apache-2.0

// Command plot draws the plots of the pages from bench/results: the reports that bench
// and bin/kubernetes load have printed, and what bench/tuning has written.
//
//	go run ./bench/plot
//
// writes burst.svg and fanout.svg into docs/images, lists.svg if there is a report of
// lists of several numbers of objects over HTTPS, growth-*.svg if there is one of
// bench -growth, tuning-*.svg, soak-*.svg, and kubernetes-*.svg if there is that table.
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("plot", flag.ContinueOnError)
	from := flags.String("from", "bench/results/reports.md", "the reports of bench")
	runs := flags.String("tuning", "bench/results/tuning.md", "the results of bench/tuning")
	load := flags.String("kubernetes", "bench/results/kubernetes.md", "the report of bin/kubernetes load")
	soaks := flags.String("soak", "bench/results/soak.md", "the report of make soak-server")
	to := flags.String("to", "docs/images", "the folder to write the plots to")
	if err := flags.Parse(args); err != nil {
		return err
	}
	report, err := os.ReadFile(*from)
	if err != nil {
		return err
	}
	plots, err := draw(string(report))
	if err != nil {
		return fmt.Errorf("%s: %w", *from, err)
	}
	figures, err := os.ReadFile(*runs)
	if err != nil {
		return err
	}
	more, err := drawCurves(tuning, string(figures))
	if err != nil {
		return fmt.Errorf("%s: %w", *runs, err)
	}
	maps.Copy(plots, more)
	soaked, err := os.ReadFile(*soaks)
	if err != nil {
		return err
	}
	if more, err = drawCurves(soak, string(soaked)); err != nil {
		return fmt.Errorf("%s: %w", *soaks, err)
	}
	maps.Copy(plots, more)
	table, err := os.ReadFile(*load)
	if err != nil {
		return err
	}
	if more, err = drawKubernetes(string(table)); err != nil {
		return fmt.Errorf("%s: %w", *load, err)
	}
	maps.Copy(plots, more)
	if err := os.MkdirAll(*to, 0o755); err != nil {
		return err
	}
	for name, svg := range plots {
		if err := os.WriteFile(filepath.Join(*to, name), []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// draw returns the plots of a report by the names of their files.
func draw(report string) (map[string]string, error) {
	figures := parse(report)
	plots := map[string]string{}
	for name, of := range map[string]plot{"burst.svg": burst, "fanout.svg": fanout} {
		svg, err := of.svg(figures)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		plots[name] = svg
	}
	for name, of := range logarithmic {
		if !of.measured(figures) {
			continue
		}
		svg, err := of.svg(figures)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		plots[name] = svg
	}
	return plots, nil
}

// logarithmic is the plots of what was measured with several numbers of one kind, by
// the names of their files.
var logarithmic = map[string]lines{
	"lists.svg": lists, "growth-objects.svg": growthObjects, "growth-watchers.svg": growthWatchers, "growth-memory.svg": growthMemory,
}

// manyObjects and manyWatchers find the rows of bench -growth.
var (
	manyObjects  = regexp.MustCompile(`^([0-9,]+) objects$`)
	manyWatchers = regexp.MustCompile(`^([0-9,]+) watchers, [0-9]+ match$`)
)

// growthObjects is the CPU time of one of each beside so many objects.
var growthObjects = lines{
	title: "CPU time of one, by the number of objects", unit: duration, of: "objects", rows: manyObjects,
	series: both("ready, each object", "event", "GET", "LIST of a namespace, each object"),
}

// growthWatchers is the CPU time of one event, of which ten watchers are told.
var growthWatchers = lines{
	title: "CPU time of an event, by the number of watchers", unit: duration, of: "watchers", rows: manyWatchers,
	series: []series{
		{figure: "CPU", subject: shipped, label: "shipped", partly: true},
		{figure: "CPU", subject: ours, label: "ours"},
	},
}

// growthMemory is the memory that a cache takes for an object.
var growthMemory = lines{
	title: "Heap of an object beyond it, by the number of objects", unit: octets, of: "objects", rows: manyObjects,
	series: both("heap of an object beyond it"),
}

// both is a line for each figure of each cache, by the figure's first word; every
// other figure's are dashed.
func both(figures ...string) (all []series) {
	for i, figure := range figures {
		word, _, _ := strings.Cut(figure, " ")
		for _, subject := range []string{shipped, ours} {
			all = append(all, series{figure: figure, subject: subject, dashed: i%2 > 0, label: subject + ", " + strings.TrimSuffix(word, ",")})
		}
	}
	return all
}

// lists is the CPU time of a server for a LIST over HTTPS.
var lists = lines{
	title: "CPU time of a LIST over HTTPS",
	unit:  duration,
	of:    "objects",
	rows:  regexp.MustCompile(`^LIST rv=0 of ([0-9,]+) devices$`),
	series: []series{
		{figure: "CPU, JSON", subject: shipped, label: "shipped, JSON"},
		{figure: "CPU, gzip", subject: shipped, dashed: true, label: "shipped, JSON, gzip"},
		{figure: "CPU, JSON", subject: ours, label: "ours, JSON"},
		{figure: "CPU, gzip", subject: ours, dashed: true, label: "ours, JSON, gzip"},
	},
}

// burst is what becomes of watchers that read as fast as they can.
var burst = plot{
	title: "20,000 events at full speed: deliveries lost",
	unit:  percent,
	most:  100,
	groups: []group{
		{"100 watchers", "20,000 events at full speed, 100 healthy watchers", "% lost"},
		{"990 watchers, beside 10 that never read", "20,000 events at full speed, 10 of 1,000 watchers never read", "% lost by healthy"},
	},
	subjects: []string{ours, shipped},
}

// fanout is the CPU time of one event, on a logarithmic axis.
var fanout = plot{
	title: "CPU time of one event (logarithmic)",
	unit:  duration,
	least: 1e3, // nanoseconds
	most:  1e8,
	groups: []group{
		{"10,000 label watchers, 100 match", "one event, 10,000 label watchers (100 selectors), 100 match, 60/s", "CPU less pacing"},
		{"the same, each with a selector of its own", "one event, 10,000 label watchers (10,000 selectors), 100 match, 60/s", "CPU less pacing"},
		{"1,000 watchers of one field each, 1 matches", "one event, 1,000 watchers each pinning an un-indexed field, 1 matches, 500/s", "CPU less pacing"},
		{"10,000 watchers, all match", "one event, 10,000 watchers, all match, 60/s", "CPU less pacing"},
		{"1,000 watchers, all match", "one event, 1,000 watchers, all match, 500/s", "CPU less pacing"},
	},
	subjects: []string{ours, shipped, floor},
}
