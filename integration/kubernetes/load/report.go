// SPDX-License-Identifier: Apache-2.0

//go:build unix

package load

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	watchcache "github.com/kube-watchcache/watchcache/server"
)

// Phase is what was measured in a phase.
type Phase struct {
	Name     string
	From, To time.Time
	// Figures are in seconds, in bytes or counts.
	Figures map[string]float64
}

func (p *Phase) has(at time.Time) bool { return !at.Before(p.From) && at.Before(p.To) }

// quantiles notes the median and the 99th percentile of durations, in seconds.
func (p *Phase) quantiles(name string, all []time.Duration) {
	p.Figures[name+", count"] = float64(len(all))
	if len(all) == 0 {
		return
	}
	slices.Sort(all)
	for label, share := range map[string]float64{"p50": 0.50, "p99": 0.99} {
		p.Figures[name+", "+label] = all[min(len(all)-1, int(share*float64(len(all))))].Seconds()
	}
}

// Round is a cluster's phases.
type Round struct {
	Implementation string
	Phases         []Phase
}

// Report is what a load has shown.
type Report struct {
	Config Config
	Rounds []Round
}

// figure is a row of each phase's table.
type figure struct{ name, key, unit string }

var rows = []figure{
	{"CPU of the kube-apiserver", "cpu", "s"},
	{"resident memory of the kube-apiserver, at most", "resident", "MB"},
	{"CPU of etcd", "etcd cpu", "s"},
	{"time", "seconds", "s"},
	{"pods made ready", "pods ready", ""},
	{"LIST of a deployment's pods, p50", "LIST of a deployment's pods, p50", "ms"},
	{"LIST of a deployment's pods, p99", "LIST of a deployment's pods, p99", "ms"},
	{"LIST of a node's pods, rv=0, p50", "LIST of a node's pods, rv=0, p50", "ms"},
	{"LIST of a node's pods, rv=0, p99", "LIST of a node's pods, rv=0, p99", "ms"},
	{"LIST of all pods, rv=0, p50", "LIST of all pods, rv=0, p50", "ms"},
	{"LIST of all pods, rv=0, p99", "LIST of all pods, rv=0, p99", "ms"},
	{"LISTs of a deployment's pods", "LIST of a deployment's pods, count", ""},
	{"LISTs of all pods, rv=0", "LIST of all pods, rv=0, count", ""},
	{"LISTs that were not sent", "lists left out", ""},
	{"write to event, observer of all pods, p50", "observer of all pods, p50", "ms"},
	{"write to event, observer of all pods, p99", "observer of all pods, p99", "ms"},
	{"write to event, observer of one pod, p50", "observer of one pod, p50", "ms"},
	{"write to event, observer of one pod, p99", "observer of one pod, p99", "ms"},
	{"410s that nodes were sent in watches", "nodes gone", ""},
	{"410s that observers were sent", "observers gone", ""},
	{"requests that were answered with 410", "answers gone", ""},
	{"lists of informers of controllers and scheduler", "informers lists", ""},
	{"lists of nodes", "nodes lists", ""},
	{"range requests to etcd", "etcd range", ""},
	{"transactions of etcd", "etcd txn", ""},
	{"messages to etcd's watches", "etcd watch", ""},
	{"stop to ready again", "ready after", "s"},
}

var scale = map[string]float64{"": 1, "s": 1, "ms": 1e-3, "MB": 1e6}

// cell writes the median, the lowest and the highest.
func (f figure) cell(values []float64) string {
	if len(values) == 0 {
		return "–"
	}
	slices.Sort(values)
	text := func(v float64) string {
		v /= scale[f.unit]
		number := fmt.Sprintf("%.3g", v)
		if v >= 1000 || v == float64(int(v)) {
			number = fmt.Sprintf("%.0f", v)
		}
		return strings.TrimSpace(number + " " + f.unit)
	}
	middle := (values[(len(values)-1)/2] + values[len(values)/2]) / 2
	if first, last := text(values[0]), text(values[len(values)-1]); first != last {
		return fmt.Sprintf("%s (%s..%s)", text(middle), first, last)
	}
	return text(middle)
}

// values returns a figure of a phase in all rounds of an implementation.
func (r *Report) values(implementation, phase, key string) (all []float64) {
	for _, round := range r.Rounds {
		for _, p := range round.Phases {
			if v, ok := p.Figures[key]; ok && round.Implementation == implementation && p.Name == phase {
				all = append(all, v)
			}
		}
	}
	return all
}

// The values of Config.Implementations: those of --watch-cache-implementation, and ours
// with --kept-lists.
const (
	ours    = string(watchcache.ImplementationWatchCache)
	shipped = string(watchcache.ImplementationShipped)
	kept    = ours + "-lists"
)

// Implementations are all of them.
var Implementations = []string{ours, kept, shipped}

// Write writes the table that bench/plot reads: a row for each figure of each phase.
func (r *Report) Write(to io.Writer) error {
	var b strings.Builder
	columns, heading := []string{ours, shipped}, "| work | ours | shipped | ours / shipped |\n|---|---|---|---|\n"
	if slices.Contains(r.Config.Implementations, kept) {
		columns, heading = append(columns, kept), "| work | ours | shipped | with kept lists | ours / shipped | with kept lists / shipped |\n|---|---|---|---|---|---|\n"
	}
	b.WriteString(heading)
	for _, phase := range []string{"fill", "steady", "rolling", "restart"} {
		first := true
		for _, f := range rows {
			cells, any := []string{}, false
			for _, i := range columns {
				values := r.values(i, phase, f.key)
				any = any || len(values) > 0
				cells = append(cells, f.cell(values))
			}
			if !any {
				continue
			}
			name := "– " + f.name
			if first {
				name = phase + ": " + f.name
			}
			first = false
			for _, i := range columns {
				if i != shipped {
					cells = append(cells, ratio(r.values(i, phase, f.key), r.values(shipped, phase, f.key)))
				}
			}
			fmt.Fprintf(&b, "| %s | %s |\n", name, strings.Join(cells, " | "))
		}
	}
	_, err := io.WriteString(to, b.String())
	return err
}

// ratio is that of the medians.
func ratio(ours, shipped []float64) string {
	median := func(values []float64) float64 {
		slices.Sort(values)
		return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
	}
	if len(ours) == 0 || len(shipped) == 0 || median(shipped) == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", median(ours)/median(shipped))
}
