// SPDX-License-Identifier: Apache-2.0

// Package hack holds the tests of the scripts in this folder that decide whether
// something is right.
package hack

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// repository is a small module with the requirements of this one, under git.
type repository struct {
	t   *testing.T
	dir string
}

// newRepository makes a repository with one commit, on branch main.
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
	r.write("cacher/a.go", "package cacher\n\nfunc New() {}\n")
	r.write("internal/b/b.go", "package b\n\nfunc New() {}\n")
	r.write("examples/c/c.go", "package c\n\nfunc New() {}\n")
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
		"no release, on main": {func(r repository) {
			r.write("cacher/a.go", more)
			r.commit("more")
		}, "", []string{"./cacher.More: added", "all of it is compatible"}, false},
		"a change that is not committed": {func(r repository) {
			r.git("tag", "v0.37.0")
			r.write("cacher/a.go", less)
		}, "", []string{"with v0.37.0 (", "./cacher.New: removed", "next minor version"}, true},
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
		"what does not compile": {func(r repository) { r.git("tag", "v0.37.0"); r.write("cacher/a.go", "package cacher\n\nvar X = y\n") }, "", []string{"of the working tree can't be read"}, true},
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
