// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"os"
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
	module, err := published(t.Context())
	require.NoError(t, err)
	for _, i := range insertions {
		source, err := os.ReadFile(filepath.Join(module.Dir, i.File))
		require.NoError(t, err)
		changed, err := i.Apply(string(source))
		require.NoError(t, err)
		require.Contains(t, changed, i.Text)
		if !i.Instead {
			require.Equal(t, len(source)+len(i.Text), len(changed))
		}
	}
}
