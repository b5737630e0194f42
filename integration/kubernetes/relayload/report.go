// SPDX-License-Identifier: Apache-2.0

//go:build unix

package relayload

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
)

// Turn is what was measured in a turn: figures in seconds, in bytes or counts.
type Turn struct {
	Name    string
	Figures map[string]float64
}

// Report is what a load has shown.
type Report struct {
	Config Config
	Turns  []Turn
}

// row is one of the table. {} is the name of a stage.
type row struct{ name, key, unit string }

var ofStages = []row{
	{"time", "{}: seconds", "s"},
	{"CPU of the kube-apiserver", "{}: kube-apiserver cpu", "s"},
	{"CPU of the relay", "{}: relay cpu", "s"},
	{"CPU of the kube-apiserver and the relay", "{}: both cpu", "s"},
	{"CPU of etcd", "{}: etcd cpu", "s"},
	{"CPU of the informers", "{}: informers cpu", "s"},
	{"resident memory of the kube-apiserver", "{}: kube-apiserver resident", "MB"},
	{"– at most so far", "{}: kube-apiserver peak", "MB"},
	{"resident memory of the relay", "{}: relay resident", "MB"},
	{"– at most so far", "{}: relay peak", "MB"},
	{"changes written", "{}: written", ""},
	{"changes given up", "{}: missed", ""},
	{"events that came to informers", "{}: events", ""},
	{"CPU of the kube-apiserver and the relay, for each event to an informer", "{}: both cpu an event", "µs"},
	{"write to event, p50", "{}: p50", "ms"},
	{"write to event, p99", "{}: p99", "ms"},
	{"requests of informers", "{}: requests", ""},
	{"– that ask for the whole state", "{}: lists", ""},
	{"– answered with 429", "{}: refused", ""},
	{"– without an answer", "{}: failed", ""},
}

var scale = map[string]float64{"": 1, "s": 1, "ms": 1e-3, "µs": 1e-6, "MB": 1e6}

func (r row) cell(value float64, there bool) string {
	if !there {
		return "–"
	}
	value /= scale[r.unit]
	number := fmt.Sprintf("%.3g", value)
	if value >= 1000 || value == float64(int(value)) {
		number = fmt.Sprintf("%.0f", value)
	}
	return strings.TrimSpace(number + " " + r.unit)
}

// complete adds the figures that are made of others.
func (t *Turn) complete() {
	for _, stage := range []string{"start", "window", "resumption"} {
		if server, ok := t.Figures[stage+": kube-apiserver cpu"]; ok {
			both := server + t.Figures[stage+": relay cpu"]
			t.Figures[stage+": both cpu"] = both
			if events := t.Figures[stage+": events"]; events > 0 && stage == "window" {
				t.Figures[stage+": both cpu an event"] = both / events
			}
		}
	}
}

// Write writes the table.
func (r *Report) Write(to io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d informers, %d for each connection, and %d of client-go's; %d pods of %d bytes of protobuf, %d changes a second, a window of %s; kube-apiserver on the watch cache %q; %d cores, %s.\n\n",
		r.Config.Informers, r.Config.PerConnection, min(r.Config.Controls, r.Config.Informers), r.Config.Pods, r.Config.Bytes, r.Config.Changes, r.Config.Window, r.Config.Implementation, runtime.NumCPU(), processor())
	b.WriteString("| work | no informers | on the relay | on the kube-apiserver | relay / none | relay / kube-apiserver |\n|---|---|---|---|---|---|\n")
	turns := map[string]*Turn{}
	for i := range r.Turns {
		r.Turns[i].complete()
		turns[r.Turns[i].Name] = &r.Turns[i]
	}
	line := func(of row, name string) bool {
		cells, values, any := []string{}, map[string]float64{}, false
		for _, t := range []string{none, onRelay, direct} {
			value, there := 0.0, false
			if turns[t] != nil {
				value, there = turns[t].Figures[of.key]
			}
			any = any || (there && value != 0)
			values[t] = value
			cells = append(cells, of.cell(value, there))
		}
		if any {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, strings.Join(cells, " | "), ratio(values[onRelay], values[none]), ratio(values[onRelay], values[direct]))
		}
		return any
	}
	for _, stage := range []string{"window", "start", "resumption"} {
		first := stage + ": "
		for _, of := range ofStages {
			of.key = strings.ReplaceAll(of.key, "{}", stage)
			if line(of, first+of.name) {
				first = ""
			}
		}
	}
	line(row{key: "down", unit: "s"}, "kill to ready again")
	for _, what := range []string{"synced", "resumed"} {
		line(row{key: what}, "informers that have "+what)
		line(row{key: what + " half", unit: "s"}, "– half of them after")
		line(row{key: what + " most", unit: "s"}, "– nine tenths of them after")
	}
	for _, when := range []string{"wrong before the kill", "wrong in the end"} {
		fmt.Fprintf(&b, "| informers with a wrong state, %s |", strings.TrimPrefix(when, "wrong "))
		for _, t := range []string{none, onRelay, direct} {
			value, there := 0.0, false
			if turns[t] != nil {
				value, there = turns[t].Figures[when]
			}
			fmt.Fprintf(&b, " %s |", row{}.cell(value, there))
		}
		b.WriteString(" – | – |\n")
	}
	_, err := io.WriteString(to, b.String())
	return err
}

func ratio(a, b float64) string {
	if a == 0 || b == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", a/b)
}

// processor is the model of the machine's processors.
func processor() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
