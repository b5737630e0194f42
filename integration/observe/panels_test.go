// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
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

// empty is the queries of panels that have nothing to show in TestAlerts: no answer in the
// shadow differs.
var empty = []string{"overview/Shadow/B", "overview/Shadow/C"}

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
				if !slices.Contains(empty, key) {
					t.Run(key, func(t *testing.T) { page.check(t, ctx, target.Expr) })
				}
			}
		}
		for _, note := range dashboard.Annotations.List {
			t.Run(name+"/annotations", func(t *testing.T) {
				page.check(t, ctx, note.Expr)
			})
		}
		for _, variable := range dashboard.Templating.List {
			if variable.Type == "query" {
				t.Run(name+"/variable "+variable.Name, func(t *testing.T) { page.checkVariable(t, ctx, variable, first) })
			}
		}
	}
	for _, key := range empty {
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

// check runs a query and requires that it shows data.
func (p *page) check(t *testing.T, ctx context.Context, expr string) {
	expr = p.expand(t, expr)
	got, err := p.rangeOf(ctx, expr)
	require.NoError(t, err, expr)
	assert.NotEmpty(t, got, "%s has no data", expr)
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
type series struct{ Metric map[string]string }

// rangeOf runs a query over the time of the test.
func (p *page) rangeOf(ctx context.Context, expr string) ([]series, error) {
	var answer struct{ Data struct{ Result []series } }
	err := p.prometheus.get(ctx, "/api/v1/query_range", url.Values{
		"query": {expr}, "step": {strconv.FormatFloat(scrapeInterval.Seconds(), 'f', -1, 64)},
		"start": {strconv.FormatInt(p.from.Unix(), 10)}, "end": {strconv.FormatInt(time.Now().Unix(), 10)},
	}, &answer)
	return answer.Data.Result, err
}
