// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Load is the CPU usage of a CPU or process group in the last second, or in the server's first
// second, since the machine started. The label "kind" is cpu or group.
type Load struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Percent is the share of one CPU's time.
	Percent int64 `json:"percent"`
	// Command is the command of a process group's leader.
	Command string `json:"command,omitempty"`
}

// LoadList is a list of loads at one resourceVersion.
type LoadList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Load `json:"items"`
}

func newLoad() runtime.Object { return &Load{} }
func newList() runtime.Object { return &LoadList{} }

// DeepCopyObject implements runtime.Object. Generate it for larger types, as examples/minimal of
// watchcache does.
func (l *Load) DeepCopyObject() runtime.Object {
	out := *l
	l.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// DeepCopyObject implements runtime.Object.
func (l *LoadList) DeepCopyObject() runtime.Object {
	out := &LoadList{TypeMeta: l.TypeMeta, Items: make([]Load, len(l.Items))}
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	for i := range l.Items {
		out.Items[i] = *l.Items[i].DeepCopyObject().(*Load)
	}
	return out
}

// reading holds the counters of /proc, in clock ticks.
type reading struct {
	elapsed  int64
	busy     map[string]int64 // by load name
	commands map[string]string
}

func read() (reading, error) {
	now := reading{busy: map[string]int64{}, commands: map[string]string{}}
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return now, err
	}
	for line := range strings.Lines(string(stat)) {
		cpu, isCPU := strings.CutPrefix(line, "cpu")
		if f := strings.Fields(cpu); isCPU && cpu[0] != ' ' && len(f) > 8 {
			all, idle := ticks(f[1:9]), ticks(f[4:6])
			now.elapsed = max(now.elapsed, all)
			now.busy["cpu-"+f[0]] = all - idle
		}
	}
	processes, err := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range processes {
		stat, _ := os.ReadFile(file)                  // empty if the process ended
		end := max(0, bytes.LastIndexByte(stat, ')')) // a command may contain any character
		pid, command, _ := strings.Cut(string(stat[:end]), " (")
		if f := strings.Fields(string(stat[end:])); len(f) > 13 {
			now.busy["group-"+f[3]] += ticks(f[12:14])
			now.commands["group-"+pid] = command // used if the process leads a group
		}
	}
	return now, err
}

func ticks(fields []string) (sum int64) {
	for _, field := range fields {
		n, _ := strconv.ParseInt(field, 10, 64)
		sum += n
	}
	return sum
}

func loads(before, now reading) (objs []runtime.Object) {
	for name := range now.busy {
		kind, _, _ := strings.Cut(name, "-")
		busy := max(0, now.busy[name]-before.busy[name]) // an ended process subtracts its ticks
		objs = append(objs, &Load{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kind": kind}},
			Percent:    100 * busy / max(1, now.elapsed-before.elapsed),
			Command:    now.commands[name],
		})
	}
	return objs
}
