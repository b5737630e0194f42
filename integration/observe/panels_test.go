// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/dashboards"
)

// shown is data that a query of a panel must have: a series with the label values,
// and a value in it that holds.
type shown struct {
	labels map[string]string
	holds  func(float64) bool
}

func positive(v float64) bool { return v > 0 }

// is returns whether a value is the wanted one.
func is(want float64) func(float64) bool { return func(v float64) bool { return v == want } }

// of is a value above 0 of the scenario's server; labels are names and values.
func of(scenario string, labels ...string) shown {
	s := shown{labels: map[string]string{"instance": scenario}, holds: positive}
	for i := 0; i < len(labels); i += 2 {
		s.labels[labels[i]] = labels[i+1]
	}
	return s
}

// at is a certain value of the scenario's server.
func at(scenario string, value float64) shown {
	return shown{labels: map[string]string{"instance": scenario}, holds: is(value)}
}

// panelData is what the queries show that do not have a value above 0 of the server
// in good order, or have more than that, by dashboard, title and query.
var panelData = map[string][]shown{
	"overview/State/A": {at(goodOrder, 1), at(notReady, 0), at(notReady, 3), at(undecodable, 2)},
	"overview/Alerts that fire/A": {
		of(notReady, "alertname", dashboards.AlertNotReady), of(silent, "alertname", dashboards.AlertStale),
		of(inconsistent, "alertname", dashboards.AlertConsistencyFailed), of(shortWindow, "alertname", dashboards.AlertWindowShort),
	},
	"overview/Relists/A":                         {of(relisting, "cause", "expired"), of(inconsistent, "cause", "inconsistent")},
	"overview/Storage troubles/A":                {of(relisting)},
	"overview/Storage troubles/B":                {of(undecodable)},
	"overview/Consistency checks/A":              {of(goodOrder, "result", "passed"), of(inconsistent, "result", "failed")},
	"overview/Shadow/A":                          {of(inShadow, "kind", "get"), of(inShadow, "kind", "list"), of(inShadow, "kind", "watch")},
	"overview/Shadow/B":                          {}, // nothing differs
	"overview/Shadow/C":                          {},
	"overview/Storage silence/A":                 {of(goodOrder), of(silent)},
	"overview/Versions behind storage/A":         {of(undecodable)},
	"overview/Version requests/A":                {of(goodOrder, "result", "ok"), of(silent, "result", "unanswered")},
	"overview/Version requests: time/A":          {of(goodOrder), of(slowEtcd)},
	"overview/Span of the window/B":              {of(shortWindow)},
	"overview/Memory/A":                          {part("objects"), part("window"), part("encodings"), part("indexes"), part("snapshots")},
	"overview/Events from storage/A":             {of(goodOrder, "type", "ADDED"), of(goodOrder, "type", "MODIFIED"), of(goodOrder, "type", "DELETED"), of(goodOrder, "type", "BOOKMARK")},
	"overview/Time by stage/A":                   {of(goodOrder, "stage", "feed"), of(goodOrder, "stage", "queue"), of(goodOrder, "stage", "dispatch")},
	"overview/Woken up/A":                        {of(notReady)},
	"watchers/The slowest watcher, in seconds/A": {of(expiring, "watcher", "worst"), of(goodOrder, "watcher", "worst")},
	"watchers/The slowest watcher, in events/A":  {of(expiring, "watcher", "worst"), of(goodOrder, "watcher", "worst")},
	"watchers/Watchers/A":                        {of(goodOrder, "state", "live"), of(goodOrder, "state", "parked"), of(expiring, "state", "parked")},
	"watchers/Expired/A":                         {of(expiring)},
	"watchers/Expired/B":                         {of(expiring)},
	"watchers/Watches ended/A":                   {of(expiring, "reason", "expired"), of(relisting, "reason", "relist"), of(undecodable, "reason", "failed")},
	"watchers/Memory held for watchers/A":        {of(goodOrder, "part", "window")},
	"reads/Reads by decision/A": {
		of(goodOrder, "verb", "get", "decision", "consistent"), of(goodOrder, "verb", "list", "decision", "consistent"),
		of(goodOrder, "verb", "list", "decision", "latest"), of(goodOrder, "verb", "list", "decision", "continue"),
		of(late, "decision", "refuse"), of(late, "decision", "delegate"),
	},
	"reads/Refused/A":         {of(late)},
	"reads/Stale reads/A":     {of(late, "answer", "refused"), of(late, "answer", "storage")},
	"reads/Indexes/A":         {of(goodOrder, "index", "keys"), of(goodOrder, "index", "f:spec.zone")},
	"reads/Indexes/B":         {at(goodOrder, 0)}, // all its lists have a declared one
	"reads/Storage silence/A": {of(silent)},
}

// part is a value above 0 of one part of the memory of all caches.
func part(name string) shown { return shown{map[string]string{"part": name}, positive} }

// checkPanels runs the queries of all panels, of the variables and of the
// annotations, as Grafana does, over the time since began.
func checkPanels(t *testing.T, ctx context.Context, prometheus *Prometheus, began time.Time) {
	known := map[string]bool{}
	for _, dashboard := range dashboards.Dashboards() {
		name := dashboard.UID[len("watchcache-"):]
		page := newPage(prometheus, dashboard, began)
		first := dashboard.Panels[slices.IndexFunc(dashboard.Panels, func(p dashboards.Panel) bool { return len(p.Targets) > 0 })].Targets[0].Expr
		for _, panel := range dashboard.Panels {
			for _, target := range panel.Targets {
				key := fmt.Sprintf("%s/%s/%s", name, panel.Title, target.RefID)
				known[key] = true
				wanted := panelData[key]
				if wanted == nil {
					wanted = []shown{of(goodOrder)}
				}
				t.Run(key, func(t *testing.T) { page.check(t, ctx, target.Expr, wanted) })
			}
		}
		for _, note := range dashboard.Annotations.List {
			t.Run(name+"/annotations", func(t *testing.T) {
				page.check(t, ctx, note.Expr, []shown{of(silent, "alertname", dashboards.AlertStale)})
			})
		}
		for _, variable := range dashboard.Templating.List {
			if variable.Type == "query" {
				t.Run(name+"/variable "+variable.Name, func(t *testing.T) { page.checkVariable(t, ctx, variable, first) })
			}
		}
	}
	for key := range panelData {
		require.True(t, known[key], "there is no query %s", key)
	}
}

// page is a dashboard as a person looks at it.
type page struct {
	prometheus *Prometheus
	from       time.Time
	// variables are the values that All has, and those that Grafana sets itself.
	variables map[string]string
}

func newPage(prometheus *Prometheus, dashboard dashboards.Dashboard, from time.Time) *page {
	// Grafana's $__rate_interval is at least four times the scrape interval that the
	// data source names.
	p := &page{prometheus, from, map[string]string{"__rate_interval": dashboards.RealTime.Of(4 * scrapeInterval)}}
	for _, variable := range dashboard.Templating.List {
		p.variables[variable.Name] = variable.AllValue
	}
	return p
}

var reference = regexp.MustCompile(`\$(\w+)|\$\{(\w+)\}`)

// expand replaces the variables of an expression.
func (p *page) expand(t *testing.T, expr string) string {
	t.Helper()
	return reference.ReplaceAllStringFunc(expr, func(found string) string {
		name := reference.ReplaceAllString(found, "$1$2")
		value, ok := p.variables[name]
		require.True(t, ok, "the dashboard has no variable %s", found)
		return value
	})
}

// check runs a query and requires the data that it must show.
func (p *page) check(t *testing.T, ctx context.Context, expr string, wanted []shown) {
	expr = p.expand(t, expr)
	got, err := p.rangeOf(ctx, expr)
	require.NoError(t, err, expr)
	for _, want := range wanted {
		assert.True(t, slices.ContainsFunc(got, want.in), "no value that is wanted of %v in %s\nwhich has %v", want.labels, expr, got)
	}
}

// in reports whether a series is the wanted one.
func (s shown) in(series series) bool {
	for label, value := range s.labels {
		if series.Metric[label] != value {
			return false
		}
	}
	return slices.ContainsFunc(series.Values, func(v sampled) bool { return s.holds(float64(v)) })
}

// checkVariable finds the values of a variable, and narrows a query to one of them.
func (p *page) checkVariable(t *testing.T, ctx context.Context, v dashboards.Variable, expr string) {
	parts := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(v.Definition)
	require.NotNil(t, parts, v.Definition)
	var answer struct{ Data []string }
	require.NoError(t, p.prometheus.get(ctx, "/api/v1/label/"+parts[2]+"/values", url.Values{"match[]": {parts[1]}}, &answer))
	require.NotEmpty(t, answer.Data)
	if v.Name == "instance" {
		require.Len(t, answer.Data, len(scenarios()))
	}
	narrowed := &page{p.prometheus, p.from, maps.Clone(p.variables)}
	// Grafana escapes a value for the regular expression, and that for the string.
	narrowed.variables[v.Name] = strings.ReplaceAll(regexp.QuoteMeta(answer.Data[0]), `\`, `\\`)
	got, err := narrowed.rangeOf(ctx, narrowed.expand(t, expr))
	require.NoError(t, err)
	require.NotEmpty(t, got)
	for _, series := range got {
		require.Equal(t, answer.Data[0], series.Metric[parts[2]])
	}
}

// series is a series of a query's result over time.
type series struct {
	Metric map[string]string
	Values []sampled
}

// sampled is a value of a series. Its time is dropped.
type sampled float64

// UnmarshalJSON implements json.Unmarshaler.
func (s *sampled) UnmarshalJSON(data []byte) error {
	var pair [2]any // time, and the value as a string
	if err := json.Unmarshal(data, &pair); err != nil {
		return err
	}
	value, err := strconv.ParseFloat(fmt.Sprint(pair[1]), 64)
	*s = sampled(value)
	return err
}

// rangeOf runs a query over the time of the test.
func (p *page) rangeOf(ctx context.Context, expr string) ([]series, error) {
	var answer struct{ Data struct{ Result []series } }
	err := p.prometheus.get(ctx, "/api/v1/query_range", url.Values{
		"query": {expr}, "step": {strconv.FormatFloat(scrapeInterval.Seconds(), 'f', -1, 64)},
		"start": {strconv.FormatInt(p.from.Unix(), 10)}, "end": {strconv.FormatInt(time.Now().Unix(), 10)},
	}, &answer)
	return answer.Data.Result, err
}
