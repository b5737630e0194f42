// SPDX-License-Identifier: Apache-2.0

//go:build !k8s36

// COMPATIBILITY.md compares with the shipped cacher of the newest Kubernetes that is held.

package metrics_test

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/metrics"
)

// shippedMetric is a metric as a package of k8s.io/apiserver declares it.
type shippedMetric struct {
	name   string
	labels []string // beside group and resource
}

var (
	constant    = regexp.MustCompile(`(?m)^\s*(\w+)\s*=\s*("[^"]*")$`)
	declaration = regexp.MustCompile(`(?s)New\w+Vec\(\s*&\w+\.\w+Opts\{(.*?)\n\t*\},\s*\[\]string\{(.*?)\}`)
	nameParts   = regexp.MustCompile(`(?:Namespace|Subsystem|Name):\s+(\S+),`)
)

// declaredIn returns the metrics that the source of a package declares.
func declaredIn(t *testing.T, pkg string) (all []shippedMetric) {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", pkg).Output()
	require.NoError(t, err)
	file, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "metrics.go"))
	require.NoError(t, err)
	source, constants := string(file), map[string]string{}
	for _, c := range constant.FindAllStringSubmatch(source, -1) {
		constants[c[1]] = c[2]
	}
	text := func(s string) string { return strings.Trim(cmp.Or(constants[s], s), `"`) }
	for _, d := range declaration.FindAllStringSubmatch(source, -1) {
		var m shippedMetric
		var name []string
		for _, part := range nameParts.FindAllStringSubmatch(d[1], -1) {
			name = append(name, text(part[1]))
		}
		m.name = strings.Join(name, "_")
		for label := range strings.SplitSeq(d[2], ",") {
			if l := text(strings.TrimSpace(label)); l != "" && l != "group" && l != "resource" {
				m.labels = append(m.labels, l)
			}
		}
		slices.Sort(m.labels)
		all = append(all, m)
	}
	require.Len(t, all, strings.Count(source, "compbasemetrics.New"), "a declaration was not understood")
	return all
}

// tableRow is a row of the table in COMPATIBILITY.md.
type tableRow struct {
	labels  []string
	written string
	ours    []string
	why     string
}

var quotedName = regexp.MustCompile("`([a-z_]+)[^`]*`")

func tableRows(t *testing.T) map[string]tableRow {
	t.Helper()
	page, err := os.ReadFile("../COMPATIBILITY.md")
	require.NoError(t, err)
	rows := map[string]tableRow{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 5 {
			continue
		}
		series := quotedName.FindStringSubmatch(cells[0])
		if series == nil || !strings.Contains(series[1], "_") {
			continue
		}
		require.NotContains(t, rows, series[1], "there are two rows")
		row := tableRow{written: strings.TrimSpace(cells[2]), why: strings.TrimSpace(cells[4])}
		for _, label := range quotedName.FindAllStringSubmatch(cells[1], -1) {
			row.labels = append(row.labels, label[1])
		}
		for _, own := range quotedName.FindAllStringSubmatch(cells[3], -1) {
			row.ours = append(row.ours, own[1])
		}
		rows[series[1]] = row
	}
	return rows
}

// The table in COMPATIBILITY.md has every metric that the shipped cacher registers,
// with its labels, says yes to those that are written, and names metrics of ours
// that exist.
func TestSeries(t *testing.T) {
	rows, known := tableRows(t), map[string]bool{}
	for _, pkg := range []string{"k8s.io/apiserver/pkg/storage/cacher/metrics", "k8s.io/apiserver/pkg/storage/metrics"} {
		for _, m := range declaredIn(t, pkg) {
			known[m.name] = true
			require.Contains(t, rows, m.name, "COMPATIBILITY.md has no row for it")
			require.Equal(t, m.labels, rows[m.name].labels, m.name)
		}
	}
	require.Greater(t, len(known), 20)
	for _, d := range metrics.List() {
		known[string(d.Name)] = true
	}
	written := map[string]bool{}
	for _, e := range mirroredEffects {
		for series := range e.want {
			name, _, _ := strings.Cut(series, " ")
			if !strings.HasPrefix(name, "watch_cache_capacity") {
				name = "apiserver_" + name
			}
			written[name] = true
		}
	}
	for series, row := range rows {
		require.True(t, known[series], "the shipped cacher registers no %s", series)
		for _, own := range row.ours {
			require.True(t, known[own], "%s: there is no %s", series, own)
		}
		want := "no"
		if written[series] {
			want = "yes"
		}
		require.Equal(t, want, row.written, series)
		require.NotEmpty(t, row.why, series)
	}
}

var quotedValue = regexp.MustCompile("`([a-z]+)`")

// A value of a label that a row names is one of a metric of ours in that row: the page
// once mapped terminated watchers to a reason that no metric had.
func TestValuesInSeries(t *testing.T) {
	values := map[string]bool{}
	for _, d := range metrics.List() {
		for _, label := range d.Labels {
			for _, value := range label.Values {
				values[string(d.Name)+" "+value] = true
			}
		}
	}
	checked := 0
	for series, row := range tableRows(t) {
		for _, value := range quotedValue.FindAllStringSubmatch(row.why, -1) {
			checked++
			require.True(t, slices.ContainsFunc(row.ours, func(own string) bool { return values[own+" "+value[1]] }),
				"COMPATIBILITY.md: %s: none of %v has the value %s", series, row.ours, value[1])
		}
	}
	require.NotZero(t, checked)
}
