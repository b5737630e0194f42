// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"math"
	"regexp"
	"strings"
)

var notInName = regexp.MustCompile(`[^A-Za-z0-9,.=+%-]+`)

// benchfmt writes every measurement as a line that golang.org/x/perf/benchfmt and
// benchstat read: BenchmarkWORK/figure=FIGURE/cache=ours 1 213 ns/op.
func (r report) benchfmt(out io.Writer) error {
	m := r.Environment
	goos, goarch, _ := strings.Cut(m.Platform, "/")
	var b strings.Builder
	fmt.Fprintf(&b, "goos: %s\ngoarch: %s\ngo: %s\ncores: %d\ncommand: %s\nload-before: %s\nload-after: %s\n\n",
		goos, goarch, m.Go, m.Cores, m.Command, m.LoadBefore, m.LoadAfter)
	for _, x := range r.Results {
		name := "Benchmark" + strings.Trim(notInName.ReplaceAllString(strings.ToUpper(x.Work[:1])+x.Work[1:], "_"), "_")
		if x.Figure != "" {
			name += "/figure=" + strings.Trim(notInName.ReplaceAllString(x.Figure, "_"), "_")
		}
		unit := map[unit]string{nanoseconds: "ns/op", octets: "B/op", count: "n/op"}[x.Unit]
		if unit == "" {
			unit = "ratio"
		}
		for _, c := range []subject{ours, shipped, installed, floor} {
			for _, v := range x.samples[c] {
				if !math.IsNaN(v) {
					fmt.Fprintf(&b, "%s/cache=%s 1 %v %s\n", name, c, v, unit)
				}
			}
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}
