// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// lines is a plot of figures of several rows of one kind against the number in their
// names. Both axes are logarithmic.
type lines struct {
	title string
	unit  unit
	// of is what there is a number of.
	of string
	// rows finds the rows; its only group is the number.
	rows   *regexp.Regexp
	series []series
}

// series is a line: a figure of one subject.
type series struct {
	figure, subject string
	dashed          bool
	label           string
	// partly: the figure was not measured in all rows.
	partly bool
}

// The measures of a plot of lines, in pixels.
const (
	linesHeight = 420
	linesLeft   = 76  // where the axes meet
	linesRight  = 590 // labels of lines stand behind it
	linesTop    = 44
	linesBottom = 366
	labelHeight = 17
)

// linesStyle is style, with what lines need.
const linesStyle = style + `
.line{fill:none;stroke-width:2}.line.ours{stroke:#0969da}.line.shipped{stroke:#bc4c00}.dashed{stroke-dasharray:6 4}
@media (prefers-color-scheme:dark){.line.ours{stroke:#4493f8}.line.shipped{stroke:#f0883e}}`

// point is a figure of a row.
type point struct {
	objects float64
	spread
}

// points returns a series in the order of the number of objects.
func (l lines) points(report figures, s series) ([]point, error) {
	var all []point
	for work, byFigure := range report {
		m := l.rows.FindStringSubmatch(work)
		if m == nil {
			continue
		}
		n, err := strconv.ParseFloat(strings.ReplaceAll(m[1], ",", ""), 64)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", work, err)
		}
		value, ok := byFigure[s.figure][s.subject]
		if !ok && s.partly {
			continue
		}
		if !ok || value.median <= 0 {
			return nil, fmt.Errorf("the table has no %q of %q, %s", s.figure, work, s.subject)
		}
		all = append(all, point{n, value})
	}
	slices.SortFunc(all, func(a, b point) int { return int(a.objects - b.objects) })
	return all, nil
}

// measured reports whether the report has rows to plot.
func (l lines) measured(report figures) bool {
	for work := range report {
		if l.rows.MatchString(work) {
			return true
		}
	}
	return false
}

// axis is a logarithmic one.
type axis struct{ least, most, from, to float64 }

func (a axis) at(value float64) float64 {
	if a.most <= a.least {
		return a.from
	}
	return a.from + (a.to-a.from)*math.Log(value/a.least)/math.Log(a.most/a.least)
}

// svg draws the plot, or returns an error that names the figure that the report
// does not have.
func (l lines) svg(report figures) (string, error) {
	all := make([][]point, len(l.series))
	x := axis{least: math.Inf(1), from: linesLeft, to: linesRight}
	y := axis{least: math.Inf(1), from: linesBottom, to: linesTop}
	for i, s := range l.series {
		points, err := l.points(report, s)
		if err != nil {
			return "", err
		}
		all[i] = points
		for _, p := range points {
			x.least, x.most = math.Min(x.least, p.objects), math.Max(x.most, p.objects)
			y.least, y.most = math.Min(y.least, p.min), math.Max(y.most, p.max)
		}
	}
	y.least, y.most = math.Pow(10, math.Floor(math.Log10(y.least))), math.Pow(10, math.Ceil(math.Log10(y.most)))
	var b, told strings.Builder
	for value := y.least; value <= y.most*1.01; value *= 10 {
		fmt.Fprintf(&b, `<line class="axis" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/>`, linesLeft, y.at(value), linesRight, y.at(value))
		fmt.Fprintf(&b, `<text class="quiet" x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", linesLeft-8, y.at(value)+4, l.unit.text(value))
	}
	for _, p := range all[0] {
		fmt.Fprintf(&b, `<line class="axis" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`, x.at(p.objects), linesTop, x.at(p.objects), linesBottom)
		fmt.Fprintf(&b, `<text class="quiet" x="%.1f" y="%d" text-anchor="middle">%.0f</text>`+"\n", x.at(p.objects), linesBottom+20, p.objects)
	}
	fmt.Fprintf(&b, `<text class="quiet" x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (linesLeft+linesRight)/2, linesBottom+40, html.EscapeString(l.of))
	labels := l.labels(all, y)
	for i, s := range l.series {
		s.draw(&b, all[i], x, y, labels[i])
		fmt.Fprintf(&told, "%s:", s.label)
		for _, p := range all[i] {
			fmt.Fprintf(&told, " %s for %.0f,", l.unit.text(p.median), p.objects)
		}
		told.WriteString(" ")
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img" aria-labelledby="t d">
<title id="t">%[3]s</title>
<desc id="d">%[4]s</desc>
<style>%[5]s</style>
<text class="title" x="%[6]d" y="20">%[3]s</text>
%[7]s</svg>
`, width, linesHeight, html.EscapeString(l.title), html.EscapeString(strings.TrimRight(told.String(), ", ")), linesStyle, left, b.String()), nil
}

// labels returns where the labels of the lines stand: behind their ends, but not
// over each other.
func (l lines) labels(all [][]point, y axis) []float64 {
	at := make([]float64, len(all))
	order := make([]int, len(all))
	for i, points := range all {
		at[i], order[i] = y.at(points[len(points)-1].median), i
	}
	slices.SortFunc(order, func(a, b int) int { return int(at[a] - at[b]) })
	for i := 1; i < len(order); i++ {
		at[order[i]] = math.Max(at[order[i]], at[order[i-1]]+labelHeight)
	}
	return at
}

// draw draws the line through the medians, with a line from the lowest to the
// highest measurement at each of them, and the label.
func (s series) draw(b *strings.Builder, points []point, x, y axis, label float64) {
	class := "line " + s.subject
	if s.dashed {
		class += " dashed"
	}
	var path []string
	for _, p := range points {
		path = append(path, fmt.Sprintf("%.1f,%.1f", x.at(p.objects), y.at(p.median)))
		fmt.Fprintf(b, `<circle class="%s" cx="%.1f" cy="%.1f" r="3.5"/>`, s.subject, x.at(p.objects), y.at(p.median))
		if p.max > p.min {
			fmt.Fprintf(b, `<line class="spread" x1="%.1[1]f" y1="%.1[2]f" x2="%.1[1]f" y2="%.1[3]f"/>`, x.at(p.objects), y.at(p.min), y.at(p.max))
		}
	}
	fmt.Fprintf(b, `<polyline class="%s" points="%s"/>`, class, strings.Join(path, " "))
	fmt.Fprintf(b, `<text x="%d" y="%.1f">%s</text>`+"\n", linesRight+10, label+4, html.EscapeString(s.label))
}
