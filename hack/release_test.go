// SPDX-License-Identifier: Apache-2.0

// Package hack holds the tests of the scripts in this folder that decide whether
// something is right.
package hack

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// repository is a small module with the requirements of this one, under git.
type repository struct {
	t   *testing.T
	dir string
}

// newRepository makes a repository that can be released but for its history:
// nothing was, and one commit is on branch main.
func newRepository(t *testing.T) repository {
	t.Helper()
	for _, command := range []string{"bash", "git", "tar"} {
		if _, err := exec.LookPath(command); err != nil {
			t.Skip(err)
		}
	}
	r := repository{t, t.TempDir()}
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join("..", name))
		require.NoError(t, err)
		r.write(name, string(text))
	}
	versions, err := os.ReadFile("../docs/adopting.md")
	require.NoError(t, err)
	r.write("docs/adopting.md", string(versions))
	r.write("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n")
	r.write("cacher/a.go", "package cacher\n\nfunc New() {}\n")
	r.write("cacher/a_test.go", "package cacher_test\n\nimport \"fmt\"\n\nfunc ExampleNew() {\n\tfmt.Println(1)\n\t// Output: 1\n}\n")
	r.write("internal/b/b.go", "package b\n\nfunc New() {}\n")
	r.write("examples/c/c.go", "package c\n\nfunc New() {}\n")
	r.write("examples/own/go.mod", "module example.com/own\n\ngo 1.26.0\n")
	r.write("examples/own/main.go", "package main\n\nfunc main() {}\n")
	r.write("hack/arrows/d_test.go", "package arrows\n")
	r.git("init", "-q", "-b", "main")
	r.commit("first")
	return r
}

func (r repository) write(name, text string) {
	r.t.Helper()
	p := filepath.Join(r.dir, filepath.FromSlash(name))
	require.NoError(r.t, os.MkdirAll(filepath.Dir(p), 0o755))
	require.NoError(r.t, os.WriteFile(p, []byte(text), 0o644))
}

func (r repository) git(args ...string) {
	r.t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"}, args...)...)
	cmd.Dir = r.dir
	out, err := cmd.CombinedOutput()
	require.NoError(r.t, err, "%s", out)
}

func (r repository) commit(message string) {
	r.t.Helper()
	r.git("add", "-A")
	r.git("commit", "-q", "-m", message)
}

// run runs a script of this folder on the repository, and returns what it prints
// and whether it succeeds.
func (r repository) run(script string, env ...string) (string, bool) {
	r.t.Helper()
	cmd := exec.Command("bash", script)
	cmd.Env = append(os.Environ(), "ROOT="+r.dir, "APIDIFF="+apidiff, "BASE=", "VERSION=")
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

// apidiff is the program, compiled once.
var apidiff string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "apidiff")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		apidiff = filepath.Join(dir, "apidiff")
		out, err := exec.Command("go", "build", "-C", "tools", "-o", apidiff, "golang.org/x/exp/cmd/apidiff").CombinedOutput()
		if err != nil {
			panic(string(out))
		}
		return m.Run()
	}())
}

// apidiff.sh says what it compares and what has changed, and fails for a change
// that breaks the rule for versions.
func TestAPIDiff(t *testing.T) {
	const (
		more = "package cacher\n\nfunc New() {}\n\nfunc More() {}\n"
		less = "package cacher\n\nfunc Other() {}\n"
	)
	for name, c := range map[string]struct {
		change func(r repository)
		env    string
		want   []string
		fails  bool
	}{
		"the first commit": {func(repository) {}, "", []string{"nothing to compare with"}, false},
		"no release, on main": {func(r repository) {
			r.write("cacher/a.go", more)
			r.commit("more")
		}, "", []string{"./cacher.More: added", "all of it is compatible"}, false},
		"no release, on a branch": {func(r repository) {
			r.git("checkout", "-q", "-b", "topic")
			r.write("cacher/a.go", more)
			r.commit("more")
			r.write("cacher/a.go", less)
			r.commit("less")
		}, "", []string{"./cacher.New: removed", "which are allowed"}, false},
		"a change that is not committed": {func(r repository) {
			r.git("tag", "v0.37.0")
			r.write("cacher/a.go", less)
		}, "", []string{"with v0.37.0 (", "./cacher.New: removed", "next minor version"}, true},
		"a new file that is not committed": {func(r repository) {
			r.git("tag", "v0.37.0")
			r.write("cacher/b.go", "package cacher\n\nfunc More() {}\n")
		}, "", []string{"./cacher.More: added"}, false},
		"compatible since the release": {func(r repository) {
			r.git("tag", "v0.37.1")
			r.write("cacher/a.go", more)
			r.commit("more")
		}, "", []string{"with v0.37.1 (", "all of it is compatible"}, false},
		"the next minor version": {func(r repository) {
			r.git("tag", "v0.36.4")
			r.write("cacher/a.go", less)
			r.commit("less")
		}, "", []string{"with v0.36.4 (", "which are allowed"}, false},
		"what is not public": {func(r repository) {
			r.git("tag", "v0.37.0")
			r.write("internal/b/b.go", "package b\n")
			r.write("examples/c/c.go", "package c\n")
			r.commit("inside")
		}, "", []string{"nothing exported has changed"}, false},
		"tests only": {func(r repository) {
			r.git("tag", "v0.37.0")
			r.write("cacher/b_test.go", "package cacher\n\nfunc Exported() {}\n")
			r.commit("tests")
		}, "", []string{"no public package has changed"}, false},
		"a base that is given": {func(r repository) {
			r.write("cacher/a.go", more)
			r.commit("more")
			r.write("cacher/a.go", less)
			r.commit("less")
		}, "BASE=HEAD~2", []string{"with HEAD~2 (", "./cacher.New: removed"}, false},
		"a base that there is not": {func(repository) {}, "BASE=v9", []string{"BASE v9 is no commit"}, true},
		"what does not compile":    {func(r repository) { r.git("tag", "v0.37.0"); r.write("cacher/a.go", "package cacher\n\nvar X = y\n") }, "", []string{"of the working tree can't be read"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRepository(t)
			c.change(r)
			out, ok := r.run("apidiff.sh", c.env)
			require.Equal(t, !c.fails, ok, out)
			for _, want := range c.want {
				require.Contains(t, out, want)
			}
			require.NotContains(t, out, "internal", "packages that are not public")
		})
	}
}

// A release needs its version in CHANGELOG.md and in no tag, a row in
// docs/adopting.md, a clean tree, and examples that print what they say.
func TestReleaseCheck(t *testing.T) {
	r := newRepository(t)
	out, ok := r.run("release-check.sh")
	require.True(t, ok, out)
	require.Contains(t, out, "nothing is missing")

	out, ok = r.run("release-check.sh", "VERSION=v0.38.0")
	require.False(t, ok)
	require.Contains(t, out, "must be v0.37.PATCH")
	require.Contains(t, out, `CHANGELOG.md has no line "## [0.38.0] - YYYY-MM-DD"`)
	require.Contains(t, out, "2 problems")

	r.write("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\n## [0.37.0] - 2026-12-01\n")
	out, _ = r.run("release-check.sh", "VERSION=v0.37.0")
	require.Contains(t, out, "not committed")
	r.commit("v0.37.0")
	out, ok = r.run("release-check.sh", "VERSION=v0.37.0")
	require.True(t, ok, out)
	r.git("tag", "v0.37.0")

	r.write("cacher/a.go", "package cacher\n\nfunc New() int { return 0 }\n")
	r.write("cacher/a_test.go", "package cacher_test\n\nimport \"fmt\"\n\nfunc ExampleNew() {\n\tfmt.Println(1)\n\t// Output: 2\n}\n")
	r.write("examples/own/main.go", "package main\n\nfunc main() { missing() }\n")
	r.write("docs/adopting.md", "# Adopting\n")
	r.write("CHANGELOG.md", "## [0.37.0] - 2026-12-01\n")
	mod, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	r.write("go.mod", string(mod)+"\nreplace example.com/x => ./x\n")
	r.commit("broken")
	out, ok = r.run("release-check.sh", "VERSION=v0.37.0")
	require.False(t, ok)
	for _, want := range []string{"there is such a tag already", "replace or exclude directive", "no row with k8s.io/apiserver", "public API has changed incompatibly", "examples/own does not compile", "an example does not print"} {
		require.Contains(t, out, want)
	}
	out, _ = r.run("release-check.sh")
	require.Contains(t, out, `no section "## [Unreleased]"`)
	require.NotContains(t, strings.ToLower(out), "command not found")
}
