// SPDX-License-Identifier: Apache-2.0

//go:build !k8s36

// COMPATIBILITY.md compares with the shipped cacher of the newest Kubernetes that is held.

package metrics_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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

// declaredIn returns the metrics that the sources of a package register, by the
// names of their variables.
func declaredIn(t *testing.T, pkg string) map[string]shippedMetric {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", pkg).Output()
	require.NoError(t, err)
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(dir)), "metrics.go"), nil, 0)
	require.NoError(t, err)
	constants, all, registered := map[string]string{}, map[string]shippedMetric{}, map[string]shippedMetric{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			if len(n.Values) != len(n.Names) {
				return true
			}
			for i, name := range n.Names {
				switch value := n.Values[i].(type) {
				case *ast.BasicLit:
					constants[name.Name] = text(value, nil)
				case *ast.CallExpr:
					if m, ok := declared(value, constants); ok {
						all[name.Name] = m
					}
				}
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "MustRegister" {
				name := n.Args[0].(*ast.Ident).Name
				require.Contains(t, all, name, "the declaration was not understood")
				registered[name] = all[name]
			}
		}
		return true
	})
	require.Equal(t, len(all), len(registered), "not all that is declared is registered")
	return registered
}

// declared reads a call of NewCounterVec, NewGaugeVec or NewHistogramVec.
func declared(call *ast.CallExpr, constants map[string]string) (shippedMetric, bool) {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !strings.HasPrefix(f.Sel.Name, "New") || !strings.HasSuffix(f.Sel.Name, "Vec") {
		return shippedMetric{}, false
	}
	parts := map[string]string{}
	for _, field := range call.Args[0].(*ast.UnaryExpr).X.(*ast.CompositeLit).Elts {
		pair := field.(*ast.KeyValueExpr)
		parts[pair.Key.(*ast.Ident).Name] = text(pair.Value, constants)
	}
	var m shippedMetric
	for _, label := range call.Args[1].(*ast.CompositeLit).Elts {
		if l := text(label, constants); l != "group" && l != "resource" {
			m.labels = append(m.labels, l)
		}
	}
	slices.Sort(m.labels)
	name := slices.DeleteFunc([]string{parts["Namespace"], parts["Subsystem"], parts["Name"]}, func(s string) bool { return s == "" })
	m.name = strings.Join(name, "_")
	return m, true
}

func text(e ast.Expr, constants map[string]string) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, _ := strconv.Unquote(e.Value)
		return s
	case *ast.Ident:
		return constants[e.Name]
	}
	return ""
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
