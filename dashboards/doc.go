// SPDX-License-Identifier: Apache-2.0

// Package dashboards makes Grafana dashboards, and recording rules and alerts for
// Prometheus, from the metrics of package metrics. A metric that is renamed there
// does not compile here.
//
// The written files are in the folders grafana and prometheus; a test fails when
// they are stale, and
//
//	make generate
//
// writes them again. Dashboards query the metrics themselves, and show data
// without the rules file. docs/runbook.md has a section for each alert.
package dashboards
