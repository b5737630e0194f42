// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/kube-watchcache/watchcache/bench/boundary"
)

// shares is into which parts the CPU time of a server goes.
type shares struct {
	Work    string  `json:"work"`
	Subject subject `json:"subject"`
	// Seconds is the CPU time that was sampled.
	Seconds float64 `json:"seconds"`
	// Of has the share of each part, from 0 to 1.
	Of map[boundary.Part]float64 `json:"of"`
}

func sharesOf(work string, sub subject, b boundary.Breakdown) shares {
	s := shares{Work: work, Subject: sub, Seconds: b.Total().Seconds(), Of: map[boundary.Part]float64{}}
	for _, part := range boundary.Parts {
		if b.Total() > 0 {
			s.Of[part] = b[part].Seconds() / b.Total().Seconds()
		}
	}
	return s
}

// sharesTable writes a table of the shares. Beside each share is what that is of
// the CPU time in results, which was measured without a profiler.
func sharesTable(b *strings.Builder, all []shares, results []result) {
	if len(all) == 0 {
		return
	}
	b.WriteString("\n| work | server | CPU")
	for _, part := range boundary.Parts {
		fmt.Fprintf(b, " | %s", part)
	}
	b.WriteString(" |\n|---|---|---" + strings.Repeat("|---", len(boundary.Parts)) + "|\n")
	for _, s := range all {
		cpu := medianCPU(results, s)
		fmt.Fprintf(b, "| %s | %s | %s", s.Work, s.Subject, cpu.text(nanoseconds))
		for _, part := range boundary.Parts {
			fmt.Fprintf(b, " | %.0f %%", 100*s.Of[part])
			if cpu.N > 0 {
				fmt.Fprintf(b, ", %s", nanoseconds.text(cpu.Median*s.Of[part]))
			}
		}
		b.WriteString(" |\n")
	}
}

// medianCPU is the figure that a breakdown is of: all CPU time, that of changes
// included.
func medianCPU(results []result, s shares) spread {
	for _, r := range results {
		if r.Work == s.Work && r.Figure == figureCPU {
			of := map[subject]spread{ours: r.Ours, shipped: r.Shipped, installed: r.Plain, floor: r.Floor}[s.Subject]
			return spread{N: of.N, Median: of.Median, Min: of.Median, Max: of.Median}
		}
	}
	return spread{}
}
