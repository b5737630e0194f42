// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/integration/etcdserver"
)

// TestConformance runs the suites by which k8s.io/apiserver judges a
// storage.Interface against a cacher over a real etcd, one after the other.
func TestConformance(t *testing.T) {
	server := etcdserver.Start(t, etcdserver.Config{})
	var ran, failed []string
	runs := 0
	for _, s := range slices.Concat(writeSuites, readSuites, watchSuites) {
		name := s.function
		if s.variant != "" {
			name += "_" + strings.ReplaceAll(s.variant, " ", "_")
		}
		ok := t.Run(name, func(t *testing.T) {
			runs++
			if !slices.Contains(ran, s.function) {
				ran = append(ran, s.function)
			}
			f := newFixture(t, server, s.needs)
			s.run(t, f)
			require.NoError(t, f.ctx.Err(), "the suite did not come to its end")
		})
		if !ok {
			failed = append(failed, name)
		}
	}
	fmt.Printf("conformance: %d suites ran in %d configurations, %d failed (%s)\n", len(ran), runs, len(failed), server)
}

// TestConformanceIsComplete compares the suites that there are with those that
// TestConformance runs. Benchmarks judge nothing and are left out.
func TestConformanceIsComplete(t *testing.T) {
	var run []string
	for _, s := range slices.Concat(writeSuites, readSuites, watchSuites) {
		run = append(run, s.function)
	}
	exported := exportedSuites(t)
	require.Greater(t, len(exported), 50, "the suites were not found")
	for _, name := range exported {
		require.Contains(t, run, name, "a suite is not run")
	}
	for _, name := range run {
		require.Contains(t, exported, name, "there is no such suite")
	}
}

// exportedSuites reads the names of the suites from their source.
func exportedSuites(t *testing.T) []string {
	t.Helper()
	const format = `{{$dir := .Dir}}{{range .GoFiles}}{{$dir}}/{{.}}{{"\n"}}{{end}}`
	paths, err := exec.Command("go", "list", "-f", format, "k8s.io/apiserver/pkg/storage/testing").Output()
	require.NoError(t, err)
	var names []string
	for path := range strings.FieldsSeq(string(paths)) {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Run") && !strings.HasPrefix(fn.Name.Name, "RunBenchmark") {
				names = append(names, fn.Name.Name)
			}
		}
	}
	return names
}
