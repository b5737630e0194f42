// SPDX-License-Identifier: Apache-2.0

//go:build unix

package tuning

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "run all of it, and write bench/results/tuning.md")

// page is where the results are kept.
const page = "../results/tuning.md"

// table is results: a row for each value of an option, or of what clients do, and
// a column for each series.
type table struct {
	title string
	head  []string
	rows  [][]string
}

// newTable returns a table with a row for each of the values.
func newTable[V any](title, of string, values []V) table {
	out := table{title: title, head: []string{of}}
	for _, value := range values {
		var first any = value
		if d, ok := first.(time.Duration); ok {
			first = d.Seconds()
		}
		out.rows = append(out.rows, []string{fmt.Sprint(first)})
	}
	return out
}

// add adds a series: a value for each row.
func (t *table) add(name string, values []float64) {
	t.head = append(t.head, name)
	for i, value := range values {
		t.rows[i] = append(t.rows[i], number(value))
	}
}

// number writes three digits, and no exponent.
func number(value float64) string {
	switch {
	case value >= 100:
		return fmt.Sprintf("%.0f", value)
	case value >= 10 || value == 0:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", value), ".0")
	}
	return fmt.Sprintf("%.2g", value)
}

// String writes the table as Markdown.
func (t table) String() string {
	var out strings.Builder
	row := func(cells []string) { fmt.Fprintf(&out, "| %s |\n", strings.Join(cells, " | ")) }
	fmt.Fprintf(&out, "## %s\n\n", t.title)
	row(t.head)
	fmt.Fprintf(&out, "|%s\n", strings.Repeat("---|", len(t.head)))
	for _, cells := range t.rows {
		row(cells)
	}
	return out.String()
}

const introduction = `# Figures for tuning

The results of the runs behind the plots of [tuning](../../docs/tuning.md). The package comment of ` + "`bench/tuning`" + ` says how they are made; ` + "`go test ./bench/tuning -run TestFigures -rewrite && go run ./bench/plot`" + ` repeats them in a minute, and writes this page and the plots.

Counts come from virtual time and are the same in each run; a test compares them with this page.
`

// TestFigures runs a part of what can be counted, and compares it with the page; with
// -rewrite, all is measured and the page written.
func TestFigures(t *testing.T) {
	if !*rewrite {
		kept, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, table := range windowTables(t, true) {
			table.requireIn(t, string(kept))
		}
		return
	}
	var out strings.Builder
	out.WriteString(introduction)
	for _, table := range windowTables(t, false) {
		out.WriteString("\n" + table.String())
	}
	require.NoError(t, os.WriteFile(page, []byte(out.String()), 0o644))
}

// requireIn requires each of the table's columns to be in a page.
func (t table) requireIn(test *testing.T, page string) {
	test.Helper()
	_, section, ok := strings.Cut(page, "## "+t.title+"\n\n")
	require.True(test, ok, "the page has no %q: go test ./bench/tuning -run TestFigures -rewrite", t.title)
	var kept [][]string
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		kept = append(kept, strings.Split(strings.Trim(strings.TrimSpace(line), "| "), " | "))
	}
	require.Len(test, kept, len(t.rows)+2, "%s: stale: go test ./bench/tuning -run TestFigures -rewrite", t.title)
	for column, name := range t.head {
		at := slices.Index(kept[0], name)
		require.GreaterOrEqual(test, at, 0, "%s has no column %q: go test ./bench/tuning -run TestFigures -rewrite", t.title, name)
		for i, row := range t.rows {
			require.Equal(test, row[column], kept[i+2][at], "%s, %s: stale: go test ./bench/tuning -run TestFigures -rewrite", t.title, name)
		}
	}
}
