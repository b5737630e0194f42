// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The modfiles that are checked in are what tidy writes from go.mod, as far as that
// shows without the modules. After a change of go.mod, tidy is due.
func TestModfilesFollowGoMod(t *testing.T) {
	t.Chdir("../..")
	for _, m := range held {
		require.NoError(t, m.requirements())
		_, err := os.Stat(m.sums())
		require.NoError(t, err)
	}
}

// A server on a minor that names it gets the tree of that minor, and is refused another
// one; its requirement of Kubernetes stays as it is.
func TestWrongMinorIsRefused(t *testing.T) {
	m := held[0]
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	tree := filepath.Join(t.TempDir(), "tree")
	require.NoError(t, m.tree(root, tree))
	server := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(server, "main.go"), []byte("package main\n\nimport (\n\t_ \""+module+"/"+m.tag+"\"\n\t_ \""+module+"/server\"\n)\n\nfunc main() {}\n"), 0o600))
	tidy := func(replacement string) (string, error) {
		require.NoError(t, os.WriteFile(filepath.Join(server, "go.mod"), []byte("module example.com/server\n\ngo 1.26.0\n\nrequire k8s.io/apiserver "+m.kubernetes+"\n\nreplace "+module+" => "+replacement+"\n"), 0o600))
		cmd := exec.Command("go", "mod", "tidy")
		cmd.Dir, cmd.Env = server, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := tidy(root)
	require.Error(t, err, out)
	require.Contains(t, out, module+"/"+m.tag)

	out, err = tidy(tree)
	require.NoError(t, err, out)
	requirements, err := requirementsOf(filepath.Join(server, "go.mod"))
	require.NoError(t, err)
	require.Contains(t, requirements, requirement{Path: "k8s.io/apiserver", Version: m.kubernetes, Indirect: true})

	for _, name := range pages {
		text, err := os.ReadFile(filepath.Join(tree, name))
		require.NoError(t, err)
		require.NotContains(t, string(text), "hack/versions", name)
		first := regexp.MustCompile(`v0\.3\d`).FindString(string(text))
		require.Equal(t, "v0.36", first, "the page %s speaks of another minor first", name)
	}
}

// The tree of a release needs no tag, and has the requirements of its minor.
func TestTree(t *testing.T) {
	t.Chdir("../..")
	for _, m := range held {
		dir := filepath.Join(t.TempDir(), "tree")
		require.NoError(t, m.tree(".", dir))
		require.Error(t, m.tree(".", dir), "it is not empty")
		for name, from := range map[string]string{"go.mod": m.modfile(), "go.sum": m.sums(), "ARCHITECTURE.md": "ARCHITECTURE.md"} {
			want, err := os.ReadFile(from)
			require.NoError(t, err)
			got, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			require.Equal(t, string(want), string(got))
		}
		for _, gone := range append([]string{"examples/minimal", "examples/computed", "hack/versions", "hack/arrows"}, m.without...) {
			require.NoDirExists(t, filepath.Join(dir, gone))
		}
		require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && filepath.Ext(path) == ".go" {
				require.Nil(t, constraintOf(t, path, m.tag), path)
			}
			return err
		}))
	}
}

// constraintOf returns the constraint of a file that mentions the tag.
func constraintOf(t *testing.T, path, tag string) constraint.Expr {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.PackageClauseOnly)
	require.NoError(t, err)
	for _, group := range file.Comments {
		for _, comment := range group.List {
			if comment.Pos() < file.Package && constraint.IsGoBuild(comment.Text) {
				expr, err := constraint.Parse(comment.Text)
				require.NoError(t, err)
				if mentions(expr, tag) {
					return expr
				}
			}
		}
	}
	return nil
}

// A package declares the same names with the tag and without. A name that was added on
// one side only is found without a compiler, and without Kubernetes.
func TestBothSidesDeclareTheSame(t *testing.T) {
	t.Chdir("../..")
	for _, m := range held {
		listed, err := git(".", nil, "ls-files", "--cached", "--others", "--exclude-standard", "*.go")
		require.NoError(t, err)
		declared := map[string]map[bool][]string{} // by folder and whether of a test, then by side
		for path := range strings.Lines(listed) {
			path = strings.TrimSpace(path)
			if _, err := os.Stat(path); err != nil {
				continue // deleted, and not committed yet
			}
			expr := constraintOf(t, path, m.tag)
			if expr == nil || strings.HasSuffix(path, "shipped_table_test.go") { // a test for the newest alone
				continue
			}
			unit := filepath.Dir(path)
			if strings.HasSuffix(path, "_test.go") {
				unit += " (tests)"
			}
			if declared[unit] == nil {
				declared[unit] = map[bool][]string{}
			}
			side := expr.Eval(func(tag string) bool { return tag == m.tag })
			declared[unit][side] = append(declared[unit][side], namesIn(t, path)...)
		}
		require.NotEmpty(t, declared)
		for unit, sides := range declared {
			slices.Sort(sides[true])
			slices.Sort(sides[false])
			if m.newer { // has more methods, and other tests
				if strings.HasSuffix(unit, " (tests)") {
					continue
				}
				require.Subset(t, sides[true], sides[false], "%s: with %s, and without", unit, m.tag)
				continue
			}
			require.Equal(t, sides[false], sides[true], "%s: with %s, and without", unit, m.tag)
		}
	}
}

// namesIn returns the names that a file declares in its package, and methods.
func namesIn(t *testing.T, path string) (out []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	require.NoError(t, err)
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			out = append(out, d.Name.Name)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					out = append(out, s.Name.Name)
				case *ast.ValueSpec:
					for _, name := range s.Names {
						if name.Name != "_" {
							out = append(out, name.Name)
						}
					}
				}
			}
		}
	}
	return out
}
