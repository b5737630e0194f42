// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The page has the table of the results that are kept, and every failure a reason.
func TestTableIsFresh(t *testing.T) {
	s := settings{root: "../../.."}
	require.NoError(t, s.writeTable(true))
	text, err := os.ReadFile(s.file(resultsFile))
	require.NoError(t, err)
	all, err := parseResults(text)
	require.NoError(t, err)
	require.Equal(t, string(text), string(formatResults(all)))
	failed := map[string]bool{}
	for _, r := range all {
		require.Contains(t, []string{ours, shipped}, r.implementation)
		require.Empty(t, r.unexplained(), "%s on %s", r.pkg, r.implementation)
		for _, test := range r.failed {
			failed[r.pkg+"\t"+test] = true
		}
	}
	for line := range strings.Lines(reasons) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		require.Len(t, fields, 3, "package, test and reason: %q", line)
		require.True(t, failed[fields[0]+"\t"+fields[1]], "a reason for %s of %s, which passes", fields[1], fields[0])
	}
}

// Every place that is patched is in the version of Kubernetes that go.mod names.
func TestPatchFits(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", kubernetes).Output()
	require.NoError(t, err)
	for _, i := range insertions {
		source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), i.file))
		require.NoError(t, err)
		changed, err := i.apply(string(source))
		require.NoError(t, err)
		require.Equal(t, len(source)+len(i.text), len(changed))
	}
}

func TestPatchRefuses(t *testing.T) {
	i := insertion{file: "config.go", before: "here", text: "new\n"}
	changed, err := i.apply("a\n\there\nb\n")
	require.NoError(t, err)
	require.Equal(t, "a\nnew\n\there\nb\n", changed)
	_, err = i.apply("a\n")
	require.EqualError(t, err, `config.go has no line "here": this version of Kubernetes needs another place`)
	_, err = i.apply("here\nhere\n")
	require.EqualError(t, err, `config.go has the line "here" more than once: this version of Kubernetes needs another place`)
}

// Tests are counted, and not their parts; a test that never ends has failed; what a test
// that fails has said is printed.
func TestResultsOfTests(t *testing.T) {
	var r result
	var failures strings.Builder
	require.NoError(t, r.read(strings.NewReader(`
{"Action":"run","Test":"TestA"}
{"Action":"output","Test":"TestA","Output":"`+serverLine+` ours\n"}
{"Action":"run","Test":"TestA/part"}
{"Action":"fail","Test":"TestA/part"}
{"Action":"fail","Test":"TestA"}
{"Action":"run","Test":"TestB"}
{"Action":"output","Test":"TestB","Output":"quiet\n"}
{"Action":"pass","Test":"TestB"}
{"Action":"run","Test":"TestC"}
{"Action":"skip","Test":"TestC"}
{"Action":"run","Test":"TestD"}
panic: no JSON
`), io.Discard, &failures))
	require.Equal(t, result{passed: 1, failed: []string{"TestA", "TestD"}, skipped: []string{"TestC"}, servers: 1}, r)
	require.Contains(t, failures.String(), serverLine)
	require.NotContains(t, failures.String(), "quiet")
	require.Equal(t, "1/3", r.share())
}

func TestTable(t *testing.T) {
	made := table([]*result{
		{pkg: "b", implementation: shipped, passed: 3, skipped: []string{"TestX"}},
		{pkg: "a", implementation: ours, passed: 1, failed: []string{"TestY"}},
		{pkg: "a", implementation: shipped, passed: 2},
	})
	for _, line := range []string{
		"| a | 1/2 | 2/2 |  |", "| b | not run | 3/3 | 1 |", "| all | 1/2 | 5/5 | |", "| a | `Y` | ours | **not explained yet** |",
	} {
		require.Contains(t, made, line+"\n")
	}
}

func TestPartIsNoResult(t *testing.T) {
	s := settings{root: t.TempDir(), run: "TestA"}
	require.ErrorContains(t, s.keepResult(&result{pkg: "job"}), "a part of the tests of job")
	s.run = ""
	require.ErrorContains(t, s.keepResult(&result{pkg: "job", passed: 3}), "no server of these tests")
}
