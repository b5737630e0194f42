// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/hack/internal/gotest"
)

const source = `package m

type ring[T any] struct{ n int }

func (r *ring[T]) push(most int) {
	if r.n < most && most != 3 {
		r.n++
	}
	r.mu.Lock()
	r.note(most + 1)
	assert(r.n > 0, most+1)
	total -= r.n
}
`

func TestSites(t *testing.T) {
	t.Parallel()
	files := token.NewFileSet()
	syntax, err := parser.ParseFile(files, "m/ring.go", source, 0)
	require.NoError(t, err)
	var got []string
	found := sites("m/ring.go", []byte(source), files, syntax, &types.Info{})
	for i := range found {
		require.Equal(t, "m/ring.go", found[i].file)
		require.Equal(t, "ring.push", found[i].function)
		got = append(got, found[i].before+" -> "+found[i].after)
		found[i].id = i + 1
	}
	require.ElementsMatch(t, []string{
		"r.n < most -> r.n <= most",
		"most != 3 -> most == 3",
		"r.n < most && most != 3 -> r.n < most || most != 3",
		"r.n < most && most != 3 -> !(r.n < most && most != 3)",
		"r.n++ -> r.n--",
		"most + 1 -> most - 1",
		"r.note(most + 1) -> ",
		"total -= r.n -> total += r.n",
	}, got, "a lock is left alone")
	text := switched([]byte(source), files, syntax, found)
	_, err = parser.ParseFile(token.NewFileSet(), "", text, 0)
	require.NoError(t, err, "%s", text)
}

// The function that TestSwitches changes.
const all = `func All(a, b int) (calls []string) {
	note := func(s string, n int) int { calls = append(calls, fmt.Sprint(s, n)); return n }
	if note("a", a) < note("b", b) && // why
		note("c", a) != 3 || note("d", a+1) == 4 {
		note("yes", 0)
	} else if n := named(a) - 2; n >= 0 {
		n += 5
		note("no"+"t", int(n))
	}
	for i := 0; i < 2; i++ {
		if i > 5 || i < -5 {
			break
		}
		note("loop", i)
	}
	if a == b || note("f", b) > 2 {
		return calls[1:]
	}
	return calls
}
`

// A switch does what the changed source does.
func TestSwitches(t *testing.T) {
	t.Parallel()
	root := newModule(t, map[string]string{
		"go.mod": "module example.com/m\n\ngo 1.26.0\n",
		"m/a.go": "package m\n\nimport \"fmt\"\n\ntype named int\n\n" + all,
	})
	s, err := schemaOf(root, []string{"./m"})
	require.NoError(t, err)
	require.Len(t, s.mutants, 24)
	changes := []struct{ before, after, from, to string }{
		{"", "", "", ""},
		{"i++", "i--", "i++", "i--"},
		{`note("a", a) < note("b", b)`, `note("a", a) <= note("b", b)`, `< note("b"`, `<= note("b"`},
		{`note("c", a) != 3`, `note("c", a) == 3`, "!= 3", "== 3"},
		{"a + 1", "a - 1", "a+1", "a-1"},
		{"named(a) - 2", "named(a) + 2", "named(a) - 2", "named(a) + 2"},
		{"n >= 0", "n > 0", "n >= 0", "n > 0"},
		{"n >= 0", "!(n >= 0)", "n >= 0", "!(n >= 0)"},
		{"n += 5", "n -= 5", "n += 5", "n -= 5"},
		{`a == b || note("f", b) > 2`, `a == b && note("f", b) > 2`, "b ||", "b &&"},
		{"i > 5 || i < -5", "!(i > 5 || i < -5)", "i > 5 || i < -5", "!(i > 5 || i < -5)"},
		{`note("loop", i)`, "", `note("loop", i)`, ""},
	}
	// One binary has the changed sources as well, each as another function.
	texts, ids := "", make([]int, len(changes))
	for i, change := range changes {
		texts += strings.Replace(strings.Replace(all, change.from, change.to, 1), "func All", fmt.Sprintf("func All%d", i), 1)
		texts += fmt.Sprintf("\nfunc Test%d(t *testing.T) { same(t, All%d) }\n\n", i, i)
		for _, m := range s.mutants {
			if m.before == change.before && m.after == change.after {
				ids[i] = m.id
			}
		}
		require.Equal(t, i > 0, ids[i] > 0, "%v", change)
	}
	program := `package m

import (
	"fmt"
	"slices"
	"testing"
)

func same(t *testing.T, f func(a, b int) []string) {
	for a := range 5 {
		for b := range 5 {
			if got, want := All(a, b), f(a, b); !slices.Equal(got, want) {
				t.Errorf("%d and %d: %v, want %v", a, b, got, want)
			}
		}
	}
}

` + texts
	require.NoError(t, os.WriteFile(filepath.Join(root, "m/a_test.go"), []byte(program), 0o600))
	b, err := newBinary(t.Context(), root, t.TempDir(), "./m", s)
	require.NoError(t, err)
	for i, change := range changes {
		of := []test{{name: fmt.Sprintf("Test%d", i)}}
		outcome, out, err := b.run(t.Context(), of, time.Minute, fmt.Sprintf("%s=%d", envMutant, ids[i]))
		require.NoError(t, err)
		require.Equal(t, gotest.Passed, outcome, "%v: %s", change, out)
		if i > 0 {
			outcome, _, err := b.run(t.Context(), of, time.Minute, envMutant+"=0")
			require.NoError(t, err)
			require.Equal(t, gotest.Failed, outcome, "%v: as without a change", change)
		}
	}
}

func newModule(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		name = filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	return root
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
	root := newModule(t, nil)
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
