// SPDX-License-Identifier: Apache-2.0

// Package arrows holds the tests that keep the tree in the shape that its
// design gives it: which package imports which, what the state machine does without, and
// which packages are never linked into a server.
package arrows

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is the folder of the module.
const root = "../.."

func TestTree(t *testing.T) {
	files, err := readTree(root)
	require.NoError(t, err)
	var packages []string
	for _, f := range files {
		if !slices.Contains(packages, f.pkg) {
			packages = append(packages, f.pkg)
		}
	}
	for _, known := range []string{"cacher", "hack/arrows", "metrics", "watchcache"} {
		require.Contains(t, packages, known, "the tree was not read whole")
	}
	for _, breach := range check(files) {
		t.Error(breach)
	}
}

func TestClosures(t *testing.T) {
	files, err := readTree(root)
	require.NoError(t, err)
	for _, c := range closures {
		var roots []string
		for _, f := range files {
			if dir := "./" + f.pkg; !f.test && covered(c.of, f.pkg) && !slices.Contains(roots, dir) {
				roots = append(roots, dir)
			}
		}
		require.NotEmpty(t, roots, "no package is like %v", c.of)
		list, err := listDeps(root, roots...)
		require.NoError(t, err)
		for _, breach := range checkClosure(list, c) {
			t.Error(breach)
		}
	}
}

// A module that go.mod requires directly has its reasons in
// docs/dependencies.md.
func TestDirectDependenciesAreExplained(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	doc, err := os.ReadFile(filepath.Join(root, "docs", "dependencies.md"))
	require.NoError(t, err)
	modules := directModules(string(mod))
	require.Contains(t, modules, "k8s.io/apiserver")
	explained := explainedModules(string(doc))
	for _, m := range modules {
		require.Contains(t, explained, m, "docs/dependencies.md has no row for a module that go.mod requires")
	}
	for _, m := range explained {
		require.Contains(t, modules, m, "docs/dependencies.md has a row for a module that go.mod does not require directly")
	}
}

// explainedModules returns the first column of the tables of dependencies.md.
func explainedModules(doc string) []string {
	var out []string
	for line := range strings.Lines(doc) {
		if cell, ok := strings.CutPrefix(line, "| `"); ok {
			m, _, _ := strings.Cut(cell, "`")
			out = append(out, m)
		}
	}
	return out
}

// directModules returns the paths of go.mod's requirements without the comment
// "indirect".
func directModules(mod string) []string {
	var out []string
	block := false
	for line := range strings.Lines(mod) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
		case fields[0] == "require" && len(fields) > 1 && fields[1] == "(":
			block = true
		case fields[0] == ")":
			block = false
		case strings.Contains(line, "// indirect"):
		case block:
			out = append(out, fields[0])
		case fields[0] == "require" && len(fields) > 2:
			out = append(out, fields[1])
		}
	}
	return out
}
