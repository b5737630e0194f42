// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// kubernetes is the plots of a cluster under load, by the names of their files.
var kubernetes = map[string]plot{
	"kubernetes-cpu.svg": {
		title: "CPU time of a kube-apiserver", unit: duration, subjects: []string{ours, shipped},
		groups: phases("CPU of the kube-apiserver", "fill", "steady", "rolling", "restart"),
	},
	"kubernetes-memory.svg": {
		title: "Resident memory of a kube-apiserver, at most", unit: octets, subjects: []string{ours, shipped},
		groups: phases("resident memory of the kube-apiserver, at most", "fill", "steady", "rolling", "restart"),
	},
	"kubernetes-latency.svg": {
		title: "From a write to its event at an observer of all pods, p99", unit: duration, subjects: []string{ours, shipped},
		groups: phases("write to event, observer of all pods, p99", "steady", "rolling", "restart"),
	},
}

// phases is a group for each phase of the load.
func phases(figure string, names ...string) (all []group) {
	for _, name := range names {
		all = append(all, group{label: name, work: name, figure: figure})
	}
	return all
}

// drawKubernetes returns the plots of a page by the names of their files; none if the
// page has no figures.
func drawKubernetes(page string) (map[string]string, error) {
	report := parse(page)
	plots := map[string]string{}
	if len(report) == 0 {
		return plots, nil
	}
	for name, of := range kubernetes {
		of.most = of.highest(report)
		svg, err := of.svg(report)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		plots[name] = svg
	}
	return plots, nil
}

// highest returns an end for the axis that holds all measurements.
func (p plot) highest(report figures) (most float64) {
	for _, g := range p.groups {
		for _, subject := range p.subjects {
			most = max(most, report[g.work][g.figure][subject].max)
		}
	}
	return nextRound(most)
}
