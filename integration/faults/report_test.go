// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"io"
	"sort"
	"strings"
	"text/tabwriter"
	"time"
)

// examples is how many violations of a fault are printed.
const examples = 5

// print writes the rows as a table, and under it what is wrong.
func print(out io.Writer, rows []row) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\t\tin 1 s, gap\tin 1 s, gap\tin 1 s, gap\tended by\t\t\tnot opened\tgap\tgap\t")
	fmt.Fprintln(table, "fault\tcache\tGET\tLIST\tetcd itself\terror\t410\tclosed\twatches\tlivez\treadyz\tviolations")
	for _, r := range rows {
		fmt.Fprintf(table, "%s\t%s\t%v\t%v\t%v\t%d\t%d\t%d\t%d\t%s\t%s\t%d\n", r.fault, r.cache, r.gets, r.lists, r.etcd,
			r.ends.errors, r.ends.expired, r.ends.closed, r.ends.refused, seconds(r.livez), seconds(r.readyz), len(r.violations))
	}
	_ = table.Flush()
	for _, r := range rows {
		for i, violation := range r.violations {
			if i == examples {
				fmt.Fprintf(out, "%s, %s: and %d more\n", r.fault, r.cache, len(r.violations)-examples)
				break
			}
			fmt.Fprintf(out, "%s, %s: %s\n", r.fault, r.cache, violation)
		}
		for _, line := range counted(r.said) {
			fmt.Fprintf(out, "%s, %s: watches were told: %s\n", r.fault, r.cache, line)
		}
	}
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// counted gives each line once, with how often it came.
func counted(lines []string) []string {
	times := map[string]int{}
	for _, line := range lines {
		if len(line) > 200 {
			line = line[:200] + "..."
		}
		times[strings.Join(strings.Fields(line), " ")]++
	}
	var out []string
	for line, n := range times {
		out = append(out, fmt.Sprintf("%d times %q", n, line))
	}
	sort.Strings(out)
	return out
}
