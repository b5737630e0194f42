// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"strconv"
	"strings"
)

// The columns of bench's report that are plotted.
const (
	ours    = "ours"
	shipped = "shipped"
	floor   = "floor"
)

// spread is a figure as measured: the median, the lowest and the highest, in
// nanoseconds where it is a time, in bytes where it is memory.
type spread struct{ median, min, max float64 }

// figures is a report: by the name of the work, the name of the figure, and the
// column. A figure that was not measured is left out.
type figures map[string]map[string]map[string]spread

// cell is "226 µs (218 µs..272 µs)", "98.9 (98.8..99.1)" or "0".
var cell = regexp.MustCompile(`^(\S+(?: [^\s(]\S*)?)(?: \((.+)\.\.(.+)\))?$`)

// parse reads the table of a report, wherever in the page it is. A row whose name
// begins with a dash is another figure of the row above.
func parse(report string) figures {
	found := figures{}
	var columns []string
	work := ""
	for line := range strings.Lines(report) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case cells[0] == "work" && len(cells) > 3 && cells[1] == ours:
			columns = cells
		case len(cells) == 1:
			columns = nil // the table has ended
		case columns == nil || strings.HasPrefix(cells[0], "--"):
		default:
			name, another := strings.CutPrefix(cells[0], "– ")
			if !another {
				// The figure of a row that has several comes after the last colon.
				work = cells[0]
				if at := strings.LastIndex(work, ": "); at >= 0 {
					work, name = work[:at], work[at+2:]
				}
				found[work] = map[string]map[string]spread{}
			}
			found[work][name] = map[string]spread{}
			for i, column := range columns {
				if s, ok := parseCell(cells[i]); ok && i > 0 {
					found[work][name][column] = s
				}
			}
		}
	}
	return found
}

func parseCell(text string) (spread, bool) {
	m := cell.FindStringSubmatch(text)
	if m == nil {
		return spread{}, false
	}
	median, ok := parseValue(m[1])
	if !ok {
		return spread{}, false
	}
	s := spread{median, median, median}
	if m[2] != "" {
		low, lowOK := parseValue(m[2])
		high, highOK := parseValue(m[3])
		if !lowOK || !highOK {
			return spread{}, false
		}
		s.min, s.max = low, high
	}
	return s, true
}

var units = map[string]float64{"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9, "B": 1, "MB": 1e6}

func parseValue(text string) (float64, bool) {
	number, unit, _ := strings.Cut(text, " ")
	factor := 1.0
	if unit != "" {
		factor = units[unit]
	}
	value, err := strconv.ParseFloat(number, 64)
	return value * factor, err == nil && factor != 0
}
