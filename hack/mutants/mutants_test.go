// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
				require.True(t, row == "" || rows[row], "docs/regressions.md has no row %s", row)
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
func regressionRows(t *testing.T) map[string]bool {
	text, err := os.ReadFile(filepath.Join(root, "docs/regressions.md"))
	require.NoError(t, err)
	rows := map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([\d, ]+) \|`).FindAllSubmatch(text, -1) {
		for number := range strings.SplitSeq(string(row[1]), ", ") {
			rows[number] = true
		}
	}
	return rows
}
