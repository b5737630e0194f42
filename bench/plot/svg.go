// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// plot is horizontal bars in groups: one group for each piece of work, one bar for
// each subject.
type plot struct {
	title    string
	unit     unit
	groups   []group
	subjects []string
	// least and most are the ends of the axis, which is logarithmic if least is
	// positive.
	least, most float64
}

// group is a figure of a row of the report, and what the plot calls it.
type group struct{ label, work, figure string }

type unit int

const (
	percent unit = iota
	duration
	octets
)

func (u unit) text(value float64) string {
	switch {
	case u == percent:
		return fmt.Sprintf("%.3g %%", value)
	case u == octets && value >= 1e6:
		return fmt.Sprintf("%.3g MB", value/1e6)
	case u == octets:
		return fmt.Sprintf("%.4g B", value)
	case value >= 1e9:
		return fmt.Sprintf("%.3g s", value/1e9)
	case value >= 1e6:
		return fmt.Sprintf("%.3g ms", value/1e6)
	default:
		return fmt.Sprintf("%.3g µs", value/1e3)
	}
}

// The measures of a plot, in pixels.
const (
	width     = 760
	left      = 16
	barLeft   = 96  // where bars begin, after the subject's name
	barRight  = 660 // where the axis ends; values stand behind the bars
	barHeight = 16
	barGap    = 4
	groupGap  = 20
	labelLine = 20
	headLine  = 40
)

// style has colours for light and dark pages. Subjects differ in lightness too,
// and each bar is named.
const style = `text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:#1f2328}
.title{font-weight:600;font-size:15px}.quiet{fill:#59636e}.value{font-variant-numeric:tabular-nums}
.axis{stroke:#d1d9e0}.ours{fill:#0969da}.shipped{fill:#bc4c00}.floor{fill:#9198a1}.spread{stroke:#1f2328;stroke-width:1.5;opacity:.55}
@media (prefers-color-scheme:dark){text{fill:#f0f6fc}.quiet{fill:#9198a1}.axis{stroke:#3d444d}.ours{fill:#4493f8}.shipped{fill:#f0883e}.floor{fill:#656c76}.spread{stroke:#f0f6fc}}`

// at returns where on the axis a value is.
func (p plot) at(value float64) float64 {
	share := value / p.most
	if p.least > 0 {
		share = math.Log(math.Max(value, p.least)/p.least) / math.Log(p.most/p.least)
	}
	return barLeft + (barRight-barLeft)*math.Min(1, math.Max(0, share))
}

// svg draws the plot, or returns an error that names the figure that the report
// does not have.
func (p plot) svg(report figures) (string, error) {
	groupHeight := labelLine + len(p.subjects)*(barHeight+barGap) + groupGap
	height := headLine + len(p.groups)*groupHeight
	var b, told strings.Builder
	for i, g := range p.groups {
		y := headLine + i*groupHeight
		fmt.Fprintf(&b, `<text x="%d" y="%d">%s</text>`+"\n", left, y+13, html.EscapeString(g.label))
		fmt.Fprintf(&told, "%s:", g.label)
		for j, subject := range p.subjects {
			s, ok := report[g.work][g.figure][subject]
			if !ok {
				return "", fmt.Errorf("the table has no %q of %q, %s", g.figure, g.work, subject)
			}
			p.bar(&b, subject, s, y+labelLine+j*(barHeight+barGap))
			fmt.Fprintf(&told, " %s %s,", subject, p.unit.text(s.median))
		}
		fmt.Fprintf(&b, `<line class="axis" x1="%[1]d" y1="%[2]d" x2="%[1]d" y2="%[3]d"/>`+"\n",
			barLeft, y+labelLine-barGap/2, y+groupHeight-groupGap-barGap/2)
		told.WriteString(" ")
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img" aria-labelledby="t d">
<title id="t">%[3]s</title>
<desc id="d">%[4]s</desc>
<style>%[5]s</style>
<text class="title" x="%[6]d" y="20">%[3]s</text>
%[7]s</svg>
`, width, height, html.EscapeString(p.title), html.EscapeString(strings.TrimRight(told.String(), ", ")), style, left, b.String()), nil
}

// bar draws a subject's bar, its name before it and its value behind it, and a
// line from the lowest to the highest measurement.
func (p plot) bar(b *strings.Builder, subject string, s spread, y int) {
	end, low, high := p.at(s.median), p.at(s.min), p.at(s.max)
	middle := y + barHeight/2
	fmt.Fprintf(b, `<text class="quiet" x="%d" y="%d" text-anchor="end">%s</text>`, barLeft-8, middle+4, subject)
	fmt.Fprintf(b, `<rect class="%s" x="%d" y="%d" width="%.1f" height="%d" rx="2"/>`, subject, barLeft, y, math.Max(1.5, end-barLeft), barHeight)
	if s.max > s.min {
		fmt.Fprintf(b, `<line class="spread" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`, low, middle, high, middle)
	}
	fmt.Fprintf(b, `<text class="value" x="%.1f" y="%d">%s</text>`+"\n", math.Max(end, high)+8, middle+4, p.unit.text(s.median))
}
