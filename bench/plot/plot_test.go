// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// The plots in the tree are those of the figures in the tree.
func TestPlotsAreFresh(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, run([]string{"-from", filepath.Join(root, "bench/results/reports.md"), "-tuning", filepath.Join(root, "bench/results/tuning.md"), "-kubernetes", filepath.Join(root, "bench/results/kubernetes.md"), "-soak", filepath.Join(root, "bench/results/soak.md"), "-to", dir}))
	drawn, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	require.NoError(t, err)
	there, err := filepath.Glob(filepath.Join(root, "docs/images/*.svg"))
	require.NoError(t, err)
	require.Len(t, drawn, len(there), "stale: go run ./bench/plot")
	for _, name := range drawn {
		want, err := os.ReadFile(name)
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join(root, "docs/images", filepath.Base(name)))
		require.NoError(t, err)
		require.Equal(t, string(want), string(got), "stale: go run ./bench/plot")
		decoder := xml.NewDecoder(strings.NewReader(string(got)))
		for {
			if _, err := decoder.Token(); err != nil {
				require.True(t, errors.Is(err, io.EOF), "%s: %v", name, err)
				break
			}
		}
	}
}

// A table as bench prints it, in a page with other tables.
const page = "# Figures\n\n| work | before | after |\n|---|---|---|\n| one event | 1 | 2 |\n\n" +
	"| work | ours | shipped | floor | ours / shipped | ours / floor | goal | |\n|---|---|---|---|---|---|---|---|\n" +
	"| one event: at 60/s: CPU | 226 µs (218 µs..272 µs) | 24.1 ms (18.8 ms..26.3 ms) | – | 1/90 | – | ≤ 1 | met |\n" +
	"| – closed | 0 | 100 | 2 | – | – | – | – |\n" +
	"| GET | -133 ns (-101 µs..11.2 µs) | 1.5 s | | | | | |\n\n| a | 1 |\n"

func TestParse(t *testing.T) {
	require.Equal(t, figures{
		"one event: at 60/s": {
			"CPU":    {ours: {226e3, 218e3, 272e3}, shipped: {24.1e6, 18.8e6, 26.3e6}},
			"closed": {ours: {0, 0, 0}, shipped: {100, 100, 100}, floor: {2, 2, 2}},
		},
		"GET": {"GET": {ours: {-133, -101e3, 11.2e3}, shipped: {1.5e9, 1.5e9, 1.5e9}}},
	}, parse(page))
}

// A bar is as long as its value says, and a figure that is missing is an error.
func TestBars(t *testing.T) {
	linear := plot{title: "a < b", unit: percent, most: 100, subjects: []string{ours, shipped}, groups: []group{{"closed", "one event: at 60/s", "closed"}}}
	svg, err := linear.svg(parse(page))
	require.NoError(t, err)
	require.Contains(t, svg, `<rect class="ours" x="96" y="60" width="1.5"`)
	require.Contains(t, svg, `<rect class="shipped" x="96" y="80" width="564.0"`)
	require.Contains(t, svg, "a &lt; b")
	require.NotContains(t, svg, "spread\" x1", "nothing to show of one value")

	logarithmic := plot{unit: duration, least: 1e3, most: 1e9}
	require.InDelta(t, barLeft, logarithmic.at(1), 0.01)
	require.InDelta(t, (barLeft+barRight)/2, logarithmic.at(1e6), 0.01)
	require.InDelta(t, barRight, logarithmic.at(1e12), 0.01)

	linear.groups[0].figure = "lost"
	_, err = linear.svg(parse(page))
	require.ErrorContains(t, err, `the table has no "lost" of "one event: at 60/s", ours`)
}

// scaled is a report of lists of several numbers of objects.
const scaled = "| work | ours | shipped | plain | ours / shipped | plain / shipped | goal | |\n|---|---|---|---|---|---|---|---|\n" +
	"| LIST rv=0 of 100,000 devices: CPU, JSON | 1 s | 10 s | – | 0.10 | – | – | – |\n" +
	"| – CPU, gzip | 1 s (500 ms..2 s) | 9 s | – | 0.11 | – | – | – |\n" +
	"| – resident memory | 377.5 MB | 400 MB | – | 0.94 | – | – | – |\n" +
	"| LIST rv=0 of 1,000 devices: CPU, JSON | 10 ms | 100 ms | – | 0.10 | – | – | – |\n" +
	"| – CPU, gzip | 10 ms | 90 ms | – | 0.11 | – | – | – |\n"

// Lines go from the fewest objects to the most, and a figure that is missing is an
// error.
func TestLines(t *testing.T) {
	report := parse(scaled)
	require.Equal(t, spread{377.5e6, 377.5e6, 377.5e6}, report["LIST rv=0 of 100,000 devices"]["resident memory"][ours])
	require.True(t, lists.measured(report))
	require.False(t, lists.measured(parse(page)))
	svg, err := lists.svg(report)
	require.NoError(t, err)
	require.NoError(t, xml.Unmarshal([]byte(svg), new(struct{})))
	require.Contains(t, svg, `<polyline class="line ours" points="76.0,366.0 590.0,151.3"/>`)
	require.Contains(t, svg, `<polyline class="line shipped" points="76.0,258.7 590.0,44.0"/>`)
	require.Contains(t, svg, "ours, JSON: 10 ms for 1000, 1 s for 100000,")
	require.Equal(t, 1, strings.Count(svg, `class="spread"`), "of the one figure that was measured more than once")
	// Two lines that end at one point have labels one below the other.
	require.Contains(t, svg, `y="155.3">ours, JSON</text>`)
	require.Contains(t, svg, `y="172.3">ours, JSON, gzip</text>`)

	delete(report["LIST rv=0 of 1,000 devices"]["CPU, gzip"], shipped)
	_, err = lists.svg(report)
	require.ErrorContains(t, err, `the table has no "CPU, gzip" of "LIST rv=0 of 1,000 devices", shipped`)
	require.Equal(t, "1.5 s", duration.text(1.5e9))
}

// A line goes through the values of its column, and a table that is missing is an
// error.
func TestCurves(t *testing.T) {
	const page = "## Lost\n\n| seconds | a < b | c |\n|---|---|---|\n| 0 | 0 | 40 (30..50) |\n| 5 | 20 | 60 |\n| 10 | 80 | 0 |\n\n## Other\n\n| x |\n|---|\n"
	c := curves{table: "Lost", title: "Lost & found", of: "seconds", unit: " %"}
	svg, err := c.svg(page)
	require.NoError(t, err)
	require.Contains(t, svg, `<polyline class="line c0" points="72.0,248.0 404.0,202.0 736.0,64.0"/>`)
	require.Contains(t, svg, `<polyline class="line c1" points="72.0,156.0 404.0,110.0 736.0,248.0"/>`)
	require.Contains(t, svg, `<line class="spread" x1="72.0" y1="179.0" x2="72.0" y2="133.0"/>`)
	require.Contains(t, svg, "Lost &amp; found")
	require.Contains(t, svg, "a &lt; b: 0 % at 0, 20 % at 5, 80 % at 10")
	require.Contains(t, svg, `text-anchor="end">80 %</text>`, "the axis ends at the next round number")

	for table, wrong := range map[string]string{
		"None":  `there is no section "None"`,
		"Other": `"Other" has no table`,
	} {
		c.table = table
		_, err = c.svg(page)
		require.ErrorContains(t, err, wrong)
	}
	c.table = "Bad"
	_, err = c.svg("## Bad\n\n| x | y |\n|---|---|\n| 0 | none |\n| 1 | 2 |\n")
	require.ErrorContains(t, err, `"none" of "0", y is not a number`)
	_, err = c.svg("## Bad\n\n| x | y |\n|---|---|\n| 0 |\n| 1 | 2 |\n")
	require.ErrorContains(t, err, "has 1 cells, and there are 2 columns")
}

// A line ends where its cache was measured last, if it may; memory has its own unit.
func TestLinesOfGrowth(t *testing.T) {
	report := parse("| work | ours | shipped | floor | ours / shipped | ours / floor | goal | |\n|---|---|---|---|---|---|---|---|\n" +
		"| 10 watchers, 10 match: CPU less pacing | 1 µs | 2 µs | – | – | – | – | – |\n" +
		"| – CPU | 10 µs | 10 µs | – | – | – | – | – |\n" +
		"| 10 watchers, idle: memory | 4000 B | 7000 B | – | – | – | – | – |\n" +
		"| 100,000 watchers, 100 match: CPU | 100 µs | – | – | – | – | – | – |\n")
	svg, err := growthWatchers.svg(report)
	require.NoError(t, err)
	require.NoError(t, xml.Unmarshal([]byte(svg), new(struct{})))
	require.Contains(t, svg, `<polyline class="line ours" points="76.0,366.0 590.0,44.0"/>`)
	require.Contains(t, svg, `<polyline class="line shipped" points="76.0,366.0"/>`)
	require.Contains(t, svg, ">watchers</text>")
	require.False(t, growthObjects.measured(report))
	require.Equal(t, "314 B", octets.text(314))
}
