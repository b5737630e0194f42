// SPDX-License-Identifier: Apache-2.0

package dashboards

import "time"

// ruleInterval is the time between two evaluations of the rules.
const ruleInterval = 15 * time.Second

// RuleFile is a rules file of Prometheus.
type RuleFile struct {
	Groups []RuleGroup `json:"groups"`
}

// RuleGroup is rules that are evaluated one after the other: an alert sees what was
// recorded just before.
type RuleGroup struct {
	Name     string `json:"name"`
	Interval string `json:"interval"`
	Rules    []Rule `json:"rules"`
}

// Rule is a recording rule or an alert.
type Rule struct {
	Record      string            `json:"record,omitempty"`
	Alert       string            `json:"alert,omitempty"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Rules returns the recording rules and the alerts at a scale.
func Rules(scale Scale) RuleFile {
	group := RuleGroup{Name: "watchcache", Interval: scale.Of(ruleInterval)}
	for _, r := range recordings() {
		group.Rules = append(group.Rules, Rule{Record: r.record, Expr: r.expr(scale)})
	}
	for _, a := range Alerts() {
		group.Rules = append(group.Rules, Rule{
			Alert: a.Name, Expr: a.expr(scale), For: scale.Of(a.For),
			Labels:      map[string]string{"severity": a.Severity},
			Annotations: map[string]string{"summary": a.Summary, "description": a.description, "runbook_url": a.Runbook()},
		})
	}
	return RuleFile{Groups: []RuleGroup{group}}
}
