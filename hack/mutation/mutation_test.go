// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const source = `package m

type ring[T any] struct{ n int }

func (r *ring[T]) push(most int) {
	if r.n < most && most != 3 {
		r.n++
	}
	r.mu.Lock()
	r.note(most + 1)
	total -= r.n
}
`

func TestSites(t *testing.T) {
	t.Parallel()
	found, err := sites("m/ring.go", []byte(source))
	require.NoError(t, err)
	got := map[string]string{}
	for _, m := range found {
		require.Equal(t, "m/ring.go", m.file)
		require.Equal(t, "ring.push", m.function)
		got[m.before+" -> "+m.after] = string(m.change([]byte(source)))
		_, err := parser.ParseFile(token.NewFileSet(), "", m.change([]byte(source)), 0)
		require.NoError(t, err, "%s", m.row())
	}
	for change, line := range map[string]string{
		"r.n < most -> r.n <= most":                             "\tif r.n <= most && most != 3 {\n",
		"most != 3 -> most == 3":                                "\tif r.n < most && most == 3 {\n",
		"r.n < most && most != 3 -> r.n < most || most != 3":    "\tif r.n < most || most != 3 {\n",
		"r.n < most && most != 3 -> !(r.n < most && most != 3)": "\tif !(r.n < most && most != 3) {\n",
		"r.n++ -> r.n--":                                        "\t\tr.n--\n",
		"most + 1 -> most - 1":                                  "\tr.note(most - 1)\n",
		"r.note(most + 1) -> ":                                  "\tr.mu.Lock()\n\t\n\ttotal",
		"total -= r.n -> total += r.n":                          "\ttotal += r.n\n",
	} {
		require.Contains(t, got[change], line, "%s", change)
		delete(got, change)
	}
	require.Empty(t, got, "a lock is left alone")
}

func TestRow(t *testing.T) {
	t.Parallel()
	m := mutant{file: "m/ring.go", function: "ring.push", before: "a || b", after: "a && b"}
	require.Equal(t, "| `m/ring.go` | `ring.push` | `a \\|\\| b` | `a && b` |", m.row())
	m.after = ""
	require.Equal(t, "| `m/ring.go` | `ring.push` | `a \\|\\| b` | removed |", m.row())
}

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
