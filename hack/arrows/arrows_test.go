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

// A module that go.mod requires directly has a comment there: what for, and why this one.
func TestDirectDependenciesAreExplained(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	modules := directModules(string(mod))
	require.Contains(t, modules, "k8s.io/apiserver")
	for module, reason := range modules {
		require.Contains(t, reason, "; ", "go.mod requires %s without a comment: what for; why this one", module)
	}
}

// Modules of the repository that need newer libraries than go.mod, and replace them by
// its versions. Otherwise the libraries of Kubernetes are compiled twice.
func TestOneVersionOfEachLibrary(t *testing.T) {
	here := builtWith(t, "go.mod")
	require.Contains(t, here, "k8s.io/apiserver")
	for _, name := range []string{"integration/kine/go.mod"} {
		there := builtWith(t, name)
		require.Contains(t, there, "k8s.io/apiserver")
		for module, version := range here {
			if got, both := there[module]; both && got != version {
				t.Errorf("%s has %s %s, go.mod %s", name, module, got, version)
			}
		}
	}
}

// builtWith returns the versions of modules that a go.mod requires or replaces.
func builtWith(t *testing.T, name string) map[string]string {
	text, err := os.ReadFile(filepath.Join(root, name))
	require.NoError(t, err)
	versions := map[string]string{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) > 3 && fields[1] == "=>":
			versions[fields[0]] = fields[3]
		case len(fields) > 1 && strings.HasPrefix(fields[1], "v"):
			versions[fields[0]] = fields[1]
		}
	}
	return versions
}

// directModules returns the comments of go.mod's direct requirements, by their paths.
func directModules(mod string) map[string]string {
	out := map[string]string{}
	block := false
	for line := range strings.Lines(mod) {
		fields := strings.Fields(line)
		_, comment, _ := strings.Cut(line, "// ")
		switch {
		case len(fields) == 0:
		case fields[0] == "require" && len(fields) > 1 && fields[1] == "(":
			block = true
		case fields[0] == ")":
			block = false
		case strings.Contains(line, "// indirect"):
		case block:
			out[fields[0]] = strings.TrimSpace(comment)
		case fields[0] == "require" && len(fields) > 2:
			out[fields[1]] = strings.TrimSpace(comment)
		}
	}
	return out
}
