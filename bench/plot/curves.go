// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// curves is lines over the rows of a table, one for each of its other columns. The
// rows stand at even distances, whatever they are called.
type curves struct {
	// table is the heading of the table, and title what the plot calls it.
	table, title string
	// of is what a row's name is, and legend what the columns' names are.
	of, legend string
	unit       string
}

// tuning is the plots of docs/tuning.md, by the names of their files.
var tuning = map[string]curves{
	"tuning-window.svg": {
		table: "Quiet clients that are told 410", title: "Quiet clients that are told 410 when they come back",
		of: "seconds away", legend: "EventsHistoryWindow", unit: " %",
	},
	"tuning-window-bytes.svg": {
		table: "Clients that are told 410 under bursts of changes", title: "Clients that are told 410 when they come back, under bursts of changes",
		of: "seconds away", legend: "WindowBytes", unit: " %",
	},
}

// soak is the plots of bench/results/soak.md.
var soak = map[string]curves{
	"soak-memory.svg":     {table: "Resident memory", title: "Resident memory of a server in a soak", of: "minutes", unit: " MB"},
	"soak-goroutines.svg": {table: "Goroutines", title: "Goroutines of a server in a soak", of: "minutes"},
}

// The measures of curves, in pixels.
const (
	curvesHeight = 300
	areaLeft     = 72
	areaRight    = 736
	areaTop      = 64
	areaBottom   = 248
	// mostNames is how many rows have their names below the axis, at most.
	mostNames = 11
)

// curvesStyle tells lines apart by colour and by dashes.
const curvesStyle = `.line{fill:none;stroke-width:2.5}
.c0{stroke:#0969da}.c1{stroke:#bc4c00;stroke-dasharray:8 3}.c2{stroke:#1a7f37;stroke-dasharray:2 3}.c3{stroke:#8250df;stroke-dasharray:10 3 2 3}.c4{stroke:#59636e;stroke-dasharray:5 5}
@media (prefers-color-scheme:dark){.c0{stroke:#4493f8}.c1{stroke:#f0883e}.c2{stroke:#3fb950}.c3{stroke:#ab7df8}.c4{stroke:#9198a1}}`

// section returns the table under a heading of a page: its columns' names, and its
// rows.
func section(page, heading string) (columns []string, rows [][]string, err error) {
	_, rest, ok := strings.Cut(page, "## "+heading+"\n\n")
	if !ok {
		return nil, nil, fmt.Errorf("there is no section %q", heading)
	}
	for line := range strings.Lines(rest) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			break
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case columns == nil:
			columns = cells
		case strings.HasPrefix(cells[0], "--"):
		case len(cells) != len(columns):
			return nil, nil, fmt.Errorf("%q: the row %q has %d cells, and there are %d columns", heading, line, len(cells), len(columns))
		default:
			rows = append(rows, cells)
		}
	}
	if len(columns) < 2 || len(rows) < 2 {
		return nil, nil, fmt.Errorf("%q has no table of at least two rows and columns", heading)
	}
	return columns, rows, nil
}

// svg draws the curves of a page.
func (c curves) svg(page string) (string, error) {
	columns, rows, err := section(page, c.table)
	if err != nil {
		return "", err
	}
	lines := make([][]spread, len(columns)-1)
	most := 0.0
	for _, row := range rows {
		for i := range lines {
			s, ok := parseCell(row[i+1])
			if !ok {
				return "", fmt.Errorf("%q: %q of %q, %s is not a number", c.table, row[i+1], row[0], columns[i+1])
			}
			lines[i] = append(lines[i], s)
			most = max(most, s.max)
		}
	}
	top := nextRound(most)
	x := func(i int) float64 { return areaLeft + float64(i)*(areaRight-areaLeft)/float64(len(rows)-1) }
	y := func(value float64) float64 { return areaBottom - (areaBottom-areaTop)*value/top }

	var b, told strings.Builder
	c.axes(&b, rows, top, x, y)
	key := float64(areaLeft)
	if c.legend != "" {
		fmt.Fprintf(&b, `<text class="quiet" x="%.0f" y="46">%s</text>`+"\n", key, html.EscapeString(c.legend))
		key += 8*float64(len(c.legend)) + 16
	}
	for i, line := range lines {
		name := columns[i+1]
		if len(lines) > 1 {
			fmt.Fprintf(&b, `<line class="line c%d" x1="%.0f" y1="42" x2="%.0f" y2="42"/><text x="%.0f" y="46">%s</text>`+"\n", i, key, key+28, key+34, html.EscapeString(name))
			key += 8*float64(len(name)) + 52
			fmt.Fprintf(&told, "%s:", strings.TrimSpace(c.legend+" "+name))
		}
		var points []string
		for j, s := range line {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(j), y(s.median)))
			if s.max > s.min {
				fmt.Fprintf(&b, `<line class="spread" x1="%.1[1]f" y1="%.1[2]f" x2="%.1[1]f" y2="%.1[3]f"/>`+"\n", x(j), y(s.min), y(s.max))
			}
			fmt.Fprintf(&told, " %s at %s,", plain(s.median)+c.unit, rows[j][0])
		}
		fmt.Fprintf(&b, `<polyline class="line c%d" points="%s"/>`+"\n", i, strings.Join(points, " "))
		told.WriteString(" ")
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img" aria-labelledby="t d">
<title id="t">%[3]s</title>
<desc id="d">%[4]s</desc>
<style>%[5]s
%[8]s</style>
<text class="title" x="%[6]d" y="20">%[3]s</text>
%[7]s</svg>
`, width, curvesHeight, html.EscapeString(c.title), html.EscapeString(strings.TrimRight(strings.TrimSpace(told.String()), ",")), style, left, b.String(), curvesStyle), nil
}

// axes draws the axes with their names.
func (c curves) axes(b *strings.Builder, rows [][]string, top float64, x func(int) float64, y func(float64) float64) {
	const steps = 4
	for i := range steps + 1 {
		value := top * float64(i) / steps
		fmt.Fprintf(b, `<line class="axis" x1="%[1]d" y1="%.1[2]f" x2="%[3]d" y2="%.1[2]f"/><text class="quiet value" x="%[4]d" y="%.1[5]f" text-anchor="end">%[6]s</text>`+"\n",
			areaLeft, y(value), areaRight, areaLeft-8, y(value)+4, plain(value)+c.unit)
	}
	every := (len(rows) + mostNames - 1) / mostNames
	for i, row := range rows {
		if i%every == 0 {
			fmt.Fprintf(b, `<text class="quiet" x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x(i), areaBottom+18, html.EscapeString(row[0]))
		}
	}
	fmt.Fprintf(b, `<text class="quiet" x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (areaLeft+areaRight)/2, areaBottom+40, html.EscapeString(c.of))
}

// plain writes a number as people do.
func plain(value float64) string { return fmt.Sprintf("%.3g", value) }

// nextRound returns the next number at or above value that four steps divide well.
func nextRound(value float64) float64 {
	if value <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(value)))
	for _, factor := range []float64{1, 1.2, 1.6, 2, 2.4, 2.8, 3.2, 4, 6, 8} {
		if factor*unit >= value {
			return factor * unit
		}
	}
	return 10 * unit
}

// drawCurves returns the plots of a page by the names of their files.
func drawCurves(all map[string]curves, page string) (map[string]string, error) {
	plots := map[string]string{}
	for name, of := range all {
		svg, err := of.svg(page)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		plots[name] = svg
	}
	return plots, nil
}
