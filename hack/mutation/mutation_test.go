// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A module whose test notices one change of two.
func TestRun(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(name, text string) {
		name = filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	write("go.mod", "module example.com/m\n\ngo 1.26.0\n")
	write(page, "nothing is explained\n")
	write("m/a.go", "package m\n\nfunc least(a, b int) bool { return a < b }\n\nfunc next(a int) int { return a + 1 }\n")
	write("m/a_test.go", "package m\n\nimport \"testing\"\n\nfunc TestAll(t *testing.T) {\n\tif !least(1, 2) || next(1) != 2 {\n\t\tt.Error()\n\t}\n}\n")
	s := settings{folders: []string{"./m"}, most: 1 << 62}
	require.ErrorContains(t, run(t.Context(), root, s), "1 mutants survive")
	write(page, "| `m/a.go` | `least` | `a < b` | `a <= b` | nobody asks for equal ones |\n")
	require.NoError(t, run(t.Context(), root, s))
	require.ErrorContains(t, run(t.Context(), root, settings{}), "no folder")
	require.ErrorContains(t, run(t.Context(), root, settings{folders: []string{"./m/..."}}), `"./m/..."`)
}
