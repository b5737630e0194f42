// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/metrics"
)

// The written files are those that the generator writes, and there are no others.
func TestFilesAreFresh(t *testing.T) {
	files, err := Files()
	require.NoError(t, err)
	for name, want := range files {
		got, err := os.ReadFile(filepath.FromSlash(name))
		require.NoError(t, err, "run make generate")
		require.Equal(t, string(want), string(got), "%s is stale: run make generate", name)
	}
	for _, folder := range []string{"grafana", "prometheus"} {
		entries, err := os.ReadDir(folder)
		require.NoError(t, err)
		for _, entry := range entries {
			require.Contains(t, files, folder+"/"+entry.Name(), "nothing writes this file: remove it")
		}
	}
}

// Each alert has a section in the runbook that says what it means, how to see the
// cause, and what to do, and no section is for an alert that does not exist. A section
// whose name does not begin as those of alerts do is about something else. The page of
// production has a fault for each.
func TestRunbook(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "docs", "runbook.md"))
	require.NoError(t, err)
	var found []string
	for _, section := range strings.Split(string(page), "\n## ")[1:] {
		name, text, _ := strings.Cut(section, "\n")
		if !strings.HasPrefix(name, alertPrefix) {
			continue
		}
		found = append(found, name)
		for _, part := range []string{"**What it means.**", "**How to see the cause.**", "**What to do.**"} {
			require.Contains(t, text, part, "section %s", name)
		}
	}
	production, err := os.ReadFile(filepath.Join("..", "docs", "production.md"))
	require.NoError(t, err)
	var want []string
	for _, alert := range Alerts() {
		require.Contains(t, string(production), " | "+alert.Name+" | ")
		want = append(want, alert.Name)
		require.True(t, strings.HasPrefix(alert.Name, alertPrefix), alert.Name)
		require.Contains(t, []string{Critical, Warning}, alert.Severity, alert.Name)
		require.True(t, strings.HasSuffix(alert.Runbook(), "docs/runbook.md#"+strings.ToLower(alert.Name)))
	}
	require.Equal(t, want, found)
}

// Each alert fires in at least one fault of the rule tests, and has at least one
// case beside a fault of its own in which it does not.
func TestEachAlertHasRuleTests(t *testing.T) {
	fires := map[string]bool{}
	silent := 0
	for _, fault := range ruleFaults() {
		for _, alert := range fault.alerts {
			fires[alert] = true
		}
		if len(fault.alerts) == 0 {
			silent++
		}
	}
	for _, alert := range Alerts() {
		require.True(t, fires[alert.Name], "no rule test makes %s fire", alert.Name)
	}
	require.Len(t, fires, len(Alerts()))
	require.NotZero(t, silent)
}

var ourSeries = regexp.MustCompile(`\bwatchcache_\w+`)

// Every expression names metrics that exist, with the labels and the values that
// they have, and every metric is on a dashboard unless it is left out on purpose.
func TestExpressionsFitTheMetrics(t *testing.T) {
	described := map[string]metrics.Description{}
	for _, d := range metrics.List() {
		described[string(d.Name)] = d
	}
	used := map[string]bool{}
	for where, expr := range expressions() {
		for _, series := range ourSeries.FindAllString(expr, -1) {
			name := series
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				if base, ok := strings.CutSuffix(series, suffix); ok && described[base].Kind == metrics.Histogram {
					name = base
				}
			}
			require.Contains(t, described, name, "%s: %s", where, expr)
			used[name] = true
		}
		for _, matcher := range regexp.MustCompile(`\b(cause|decision|part|reason|result|state|verb|watcher)(=~?|!=)"([^"]*)"`).FindAllStringSubmatch(expr, -1) {
			for _, value := range strings.Split(matcher[3], "|") {
				require.True(t, hasValue(described, expr, matcher[1], value), "%s: no metric of the expression has the label value %s=%q: %s", where, matcher[1], value, expr)
			}
		}
	}
	for name := range described {
		require.True(t, used[name] || slices.Contains(offDashboards, metrics.Name(name)), "%s is on no dashboard and in no rule", name)
	}
}

// offDashboards is the metrics that other panels show better.
var offDashboards = []metrics.Name{
	metrics.NameVersionRequests,       // the histogram of their time counts them by result
	metrics.NameInitialSnapshots,      // their bytes are shown
	metrics.NameOldestResourceVersion, // the span is shown in seconds and events
}

// expressions is the expressions of all panels and rules by where they are.
func expressions() map[string]string {
	all := map[string]string{}
	for _, d := range Dashboards() {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				all[d.Title+", "+p.Title+", "+target.RefID] = target.Expr
			}
		}
		for _, v := range d.Templating.List {
			all[d.Title+", variable "+v.Name] = v.Definition
		}
	}
	for _, rule := range Rules(RealTime).Groups[0].Rules {
		all["rule "+rule.Alert+rule.Record] = rule.Expr
	}
	return all
}

// hasValue reports whether a metric that an expression names has a label with the
// value.
func hasValue(described map[string]metrics.Description, expr, label, value string) bool {
	for name, d := range described {
		if !strings.Contains(expr, name) {
			continue
		}
		for _, l := range d.Labels {
			if l.Name == label && (len(l.Values) == 0 || slices.Contains(l.Values, value)) {
				return true
			}
		}
	}
	return false
}

// The limit of slow requests is a bound of the histogram, without which the rule
// has no series.
func TestSlowIsABucket(t *testing.T) {
	for _, d := range metrics.List() {
		if d.Name == metrics.NameVersionDuration {
			require.Contains(t, d.Buckets, slowVersionRequest.Seconds())
			return
		}
	}
	require.FailNow(t, "there is no histogram of version requests")
}

func TestScale(t *testing.T) {
	for _, test := range []struct {
		scale Scale
		d     time.Duration
		want  string
	}{
		{1, 15 * time.Minute, "15m"}, {1, 0, "0s"}, {1, 15 * time.Second, "15s"}, {1, 2 * time.Hour, "2h"},
		{20, 15 * time.Minute, "45s"}, {20, 15 * time.Second, "750ms"}, {20, 2 * time.Minute, "6s"}, {60, time.Hour, "1m"},
	} {
		require.Equal(t, test.want, test.scale.Of(test.d))
	}
	require.Equal(t, 3.0, Scale(20).Seconds(time.Minute))
	// The scale changes times and nothing else.
	real, scaled := Rules(RealTime).Groups[0], Rules(20).Groups[0]
	require.Equal(t, "15s", real.Interval)
	require.Equal(t, "750ms", scaled.Interval)
	require.Len(t, scaled.Rules, len(real.Rules))
	for i := range real.Rules {
		require.Equal(t, real.Rules[i].Labels, scaled.Rules[i].Labels)
		require.Equal(t, real.Rules[i].Annotations, scaled.Rules[i].Annotations)
		require.NotContains(t, scaled.Rules[i].Expr, "[15m]")
	}
}
