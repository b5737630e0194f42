// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/hack/internal/gotest"
)

const root = "../.."

// least is how many bugs there are to be.
const least = 40

// Every patch still applies to the tree, says which bug it is and names tests that
// exist, so that make mutants has something to run.
func TestPatches(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		require.NotEqual(t, "true", os.Getenv("CI"), "git is needed")
		t.Skip("the patches can't be applied: ", err)
	}
	patches, err := read(root)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(patches), least)
	rows := regressionRows(t)
	for _, p := range patches {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			replaced, err := p.apply(t.Context(), root, t.TempDir())
			require.NoError(t, err)
			for file, by := range replaced {
				before, err := os.ReadFile(filepath.Join(root, file))
				require.NoError(t, err)
				after, err := os.ReadFile(by)
				require.NoError(t, err)
				require.NotEqual(t, string(before), string(after), "the patch changes nothing of %s", file)
			}
			sources, err := filepath.Glob(filepath.Join(root, p.pkg, "*_test.go"))
			require.NoError(t, err)
			for name := range strings.SplitSeq(p.tests, "|") {
				name, _, _ = strings.Cut(name, "/")
				require.True(t, declared(t, sources, name), "%s has no %s", p.pkg, name)
			}
			for row := range strings.SplitSeq(p.regressions, ", ") {
				if row != "" {
					n, err := strconv.Atoi(row)
					require.NoError(t, err)
					require.True(t, 0 < n && n <= rows, "docs/regressions.md has no row %d", n)
				}
			}
		})
	}
}

// declared reports whether one of the files has the test.
func declared(t *testing.T, files []string, test string) bool {
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		if bytes.Contains(text, []byte("\nfunc "+test+"(")) {
			return true
		}
	}
	return false
}

// regressionRows returns how many rows docs/regressions.md has.
func regressionRows(t *testing.T) int {
	text, err := os.ReadFile(filepath.Join(root, "docs/regressions.md"))
	require.NoError(t, err)
	return len(regexp.MustCompile(`(?m)^\| \d+ \|`).FindAll(text, -1))
}

const difference = "\n--- a/cacher/feed.go\n+++ b/cacher/feed.go\n@@ -1 +1 @@\n-a\n+b\n"

func TestParse(t *testing.T) {
	t.Parallel()
	p, err := parse("001-a", "bug: a lock is dropped\ncaught by: ./cacher TestA|TestB/sub\nwith: -race -tags=invariants\nhang: counts\nregressions: 3, 8\n"+difference)
	require.NoError(t, err)
	require.Equal(t, patch{
		name: "001-a", bug: "a lock is dropped", pkg: "./cacher", tests: "TestA|TestB/sub",
		with: []string{"-race", "-tags=invariants"}, hang: true, regressions: "3, 8", files: []string{"cacher/feed.go"},
	}, p)
	require.Equal(t, "go test -run '^TestA$|^TestB$/^sub$' ./cacher -race -tags=invariants", p.command())
	for text, want := range map[string]string{
		"":                                     "no difference",
		"bug: b\n":                             "no difference",
		"caught by: ./cacher T\n" + difference: "no bug",
		"bug: b\n" + difference:                "no caught by",
		"bug: b\ncaught by: cacher T\n" + difference:                         "no caught by",
		"bug: b\ncaught by: ./cacher\n" + difference:                         "no caught by",
		"bug: b\ncaught by: ./cacher T\nhang: yes\n" + difference:            `hang is "yes"`,
		"bug: b\ncaught by: ./cacher T\nwhy: because\n" + difference:         `"why: because"`,
		"bug: b\ncaught by: ./c T\n\n--- a/c/a_test.go\n+++ b/c/a_test.go\n": "a_test.go is changed",
	} {
		_, err := parse("001-a", text)
		require.ErrorContains(t, err, want, "%q", text)
		require.ErrorContains(t, err, "001-a")
	}
}

// A failure counts as caught, and a hang where the header says so.
func TestCaught(t *testing.T) {
	t.Parallel()
	patient := patch{name: "a", pkg: "./cacher", tests: "TestA", hang: true}
	strict := patch{name: "b", pkg: "./cacher", tests: "TestA"}
	for _, p := range []patch{patient, strict} {
		require.NoError(t, p.caught(gotest.Result{Outcome: gotest.Failed}))
		require.ErrorContains(t, p.caught(gotest.Result{Outcome: gotest.Passed}), "the bug survives")
		require.ErrorContains(t, p.caught(gotest.Result{Outcome: gotest.Broken, Output: "syntax error"}), "syntax error")
	}
	require.NoError(t, patient.caught(gotest.Result{Outcome: gotest.Hung}))
	require.ErrorContains(t, strict.caught(gotest.Result{Outcome: gotest.Hung}), "hangs")

	var out bytes.Buffer
	verdicts := []verdict{
		{patch: patient, result: gotest.Result{Outcome: gotest.Hung}},
		{patch: strict, result: gotest.Result{Outcome: gotest.Failed, Test: "TestA/sub"}},
		{patch: strict, err: errors.New("it survives")},
	}
	require.Equal(t, 1, uncaught(verdicts))
	show(&out, verdicts)
	require.Contains(t, out.String(), "hang of TestA")
	require.Contains(t, out.String(), "TestA/sub")
	require.Contains(t, out.String(), "NOT CAUGHT")
}

// The tests of all patches run once without a bug, those of one package together.
func TestTogether(t *testing.T) {
	t.Parallel()
	require.Equal(t, []patch{
		{pkg: "./a", tests: "TestA|TestB|TestC"},
		{pkg: "./a", tests: "TestA", with: []string{"-race"}},
		{pkg: "./b", tests: "TestA"},
	}, together([]patch{
		{pkg: "./a", tests: "TestA|TestC"},
		{pkg: "./b", tests: "TestA"},
		{pkg: "./a", tests: "TestA", with: []string{"-race"}},
		{pkg: "./a", tests: "TestB"},
	}))
}

func TestNamed(t *testing.T) {
	t.Parallel()
	all := []patch{{name: "001-a"}, {name: "002-b"}, {name: "003-ab"}}
	for parts, want := range map[string][]patch{"": all, "002": all[1:2], "a": {all[0], all[2]}, "001 b": all} {
		got, err := named(all, strings.Fields(parts))
		require.NoError(t, err)
		require.Equal(t, want, got, parts)
	}
	_, err := named(all, []string{"004"})
	require.ErrorContains(t, err, "004")
}
