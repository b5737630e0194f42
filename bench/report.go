// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
)

// report is what the program prints.
type report struct {
	Environment machine `json:"environment"`
	// Boundary: the results are of servers, over HTTPS.
	Boundary bool     `json:"boundary,omitempty"`
	Results  []result `json:"results"`
	// Shares is into what the CPU time of the servers goes.
	Shares []shares `json:"shares,omitempty"`
}

// machine is what the figures were measured on.
type machine struct {
	Command    string `json:"command"`
	Go         string `json:"go"`
	Platform   string `json:"platform"`
	Cores      int    `json:"cores"`
	GOMAXPROCS int    `json:"gomaxprocs"`
	// LoadBefore and LoadAfter are the load averages, "" where unknown.
	LoadBefore string `json:"loadBefore,omitempty"`
	LoadAfter  string `json:"loadAfter,omitempty"`
}

func environment(args []string) machine {
	quoted := make([]string, len(args))
	for i, arg := range args {
		quoted[i] = arg
		if strings.ContainsAny(arg, " |()*?$'\"") {
			quoted[i] = "'" + arg + "'"
		}
	}
	return machine{
		Command:    strings.TrimSpace("go run ./bench " + strings.Join(quoted, " ")),
		Go:         runtime.Version(),
		Platform:   runtime.GOOS + "/" + runtime.GOARCH,
		Cores:      runtime.NumCPU(),
		GOMAXPROCS: runtime.GOMAXPROCS(0),
		LoadBefore: load(),
	}
}

// load returns the load averages over 1, 5 and 15 minutes, where Linux tells.
func load() string {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(raw))
	return strings.Join(fields[:min(3, len(fields))], " ")
}

func (r report) json(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

func (r report) markdown(out io.Writer) error {
	m := r.Environment
	var b strings.Builder
	fmt.Fprintf(&b, "`%s`, %s, %s, %d cores, GOMAXPROCS %d; load averages %q before, %q after (the measurement's own load included).\n\n",
		m.Command, m.Go, m.Platform, m.Cores, m.GOMAXPROCS, m.LoadBefore, m.LoadAfter)
	columns := r.columns()
	b.WriteString("| work")
	for _, c := range columns {
		b.WriteString(" | " + c.name)
	}
	b.WriteString(" | goal | |\n|---|---|---" + strings.Repeat("|---", len(columns)) + "|\n")
	last := ""
	for _, x := range r.Results {
		work := x.Work
		if x.Figure != "" {
			work += ": " + x.Figure
			if x.Work == last {
				work = "– " + x.Figure
			}
		}
		last = x.Work
		fmt.Fprintf(&b, "| %s", work)
		for _, c := range columns {
			of, u := c.of(x)
			fmt.Fprintf(&b, " | %s", of.text(u))
		}
		fmt.Fprintf(&b, " | %s | %s |\n", x.Goal, x.verdict())
	}
	sharesTable(&b, r.Shares, r.Results)
	_, err := io.WriteString(out, b.String())
	return err
}

// column is a column of the report.
type column struct {
	name string
	of   func(result) (spread, unit)
}

func (r report) columns() []column {
	columns := []column{
		{"ours", func(x result) (spread, unit) { return x.Ours, x.Unit }},
		{"shipped", func(x result) (spread, unit) { return x.Shipped, x.Unit }},
		{"plain", func(x result) (spread, unit) { return x.Plain, x.Unit }},
		{"floor", func(x result) (spread, unit) { return x.Floor, x.Unit }},
		{"ours / shipped", func(x result) (spread, unit) { return x.ToShipped, ratio }},
		{"plain / shipped", func(x result) (spread, unit) { return x.PlainToShipped, ratio }},
		{"ours / floor", func(x result) (spread, unit) { return x.ToFloor, ratio }},
	}
	if !r.Boundary {
		columns = slices.DeleteFunc(columns, func(c column) bool { return strings.HasPrefix(c.name, "plain") })
	}
	return columns
}
