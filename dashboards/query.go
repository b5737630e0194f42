// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"fmt"
	"strings"

	"github.com/kube-watchcache/watchcache/metrics"
)

// identity is the labels that tell one cache from all others: the first two are
// Prometheus' own.
var identity = []string{"job", "instance", "group", "resource"}

// byCache keeps the labels of a cache in an aggregation.
const byCache = "by (job, instance, group, resource)"

// onCache matches the series of one cache.
const onCache = "on (job, instance, group, resource)"

// selection matches what a person has chosen at the head of a dashboard.
const selection = `job=~"$job",instance=~"$instance",group=~"$group",resource=~"$resource"`

// cacheLegend names a cache.
const cacheLegend = "{{resource}}.{{group}} {{instance}}"

// chosen returns the series of a metric that the dashboard's variables select, and
// that all matchers match.
func chosen(metric metrics.Name, matchers ...string) string {
	return string(metric) + "{" + strings.Join(append([]string{selection}, matchers...), ",") + "}"
}

// perSecond returns by how much a counter grows in a second, by cache and labels.
func perSecond(metric metrics.Name, labels ...string) string {
	return fmt.Sprintf("sum %s (rate(%s[$__rate_interval]))", by(labels...), chosen(metric))
}

// grown returns by how much the series of a counter grew in a time. A series appears
// when it is first counted, and Prometheus' increase takes no notice of that first
// count; so a series that is younger than the time counts with its value.
func grown(series, time string) string {
	return fmt.Sprintf("(%[1]s unless %[1]s offset %[2]s)\n  or increase(%[1]s[%[2]s])", series, time)
}

// mean returns the ratio of two counters' growth, by cache.
func mean(metric, per metrics.Name) string {
	return perSecond(metric) + "\n/\n" + perSecond(per)
}

// quantile returns a quantile of a histogram by cache and labels.
func quantile(q string, metric metrics.Name, labels ...string) string {
	return fmt.Sprintf("histogram_quantile(%s, sum %s (rate(%s[$__rate_interval])))",
		q, by(append(labels, "le")...), chosen(metric+"_bucket"))
}

// quantiles are queries for the median and the 99th percentile of a histogram.
func quantiles(metric metrics.Name, labels ...string) []query {
	name := strings.TrimSpace(legendOf(labels...))
	return []query{
		{quantile("0.5", metric, labels...), "median " + name},
		{quantile("0.99", metric, labels...), "p99 " + name},
	}
}

func by(labels ...string) string {
	return "by (" + strings.Join(append(append([]string{}, identity...), labels...), ", ") + ")"
}

// legendOf names a series by the values of labels, then by its cache.
func legendOf(labels ...string) string {
	var name strings.Builder
	for _, label := range labels {
		if label != "le" {
			name.WriteString("{{" + label + "}} ")
		}
	}
	return name.String() + cacheLegend
}
