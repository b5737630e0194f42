// SPDX-License-Identifier: Apache-2.0

package arrows

import (
	"fmt"
	"go/ast"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// elsewhere is files that our pages name and the tree does not have: files of
// other projects, and what stands for any file.
var elsewhere = []string{"pkg/cmd/server/start.go", "pkg/apiserver/apiserver.go", "NAME.txt"}

// The names between backquotes in our pages exist: tests, files, folders, targets of
// make, and names of our packages. The two ways in ARCHITECTURE.md can be followed by the
// names of files alone.
func TestNamesInPages(t *testing.T) {
	tree, err := readNames(root)
	require.NoError(t, err)
	for _, known := range []string{"TestNamesInPages", "cacher.New"} {
		require.True(t, tree.tests[known] || tree.declared[known], "the tree was not read whole: %s", known)
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	require.NoError(t, err)
	for _, page := range []string{"ARCHITECTURE.md", "COMPATIBILITY.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"} {
		pages = append(pages, filepath.Join(root, page))
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, target := range makeTarget.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(string(makefile), "\n"+target[1]+":") {
				t.Errorf("%s names make %s, which is no target", filepath.Base(page), target[1])
			}
		}
		for _, name := range tree.unknown(string(text)) {
			t.Errorf("%s names %s, which does not exist", filepath.Base(page), name)
		}
	}
	architecture, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	require.NoError(t, err)
	for _, path := range []string{"The path of an event", "The path of a read"} {
		steps := rows(string(architecture), path)
		require.NotEmpty(t, steps, "there is no table under %q", path)
		for _, name := range tree.astray(steps) {
			t.Errorf("%s leads to %s, which does not exist", path, name)
		}
	}
}

// names is what pages may name.
type names struct {
	files, folders map[string]bool
	// tests is the functions of test files.
	tests map[string]bool
	// declared is what the packages of the module declare, fields and methods
	// included, with the name of the package: cacher.Config, cacher.Storage.
	declared map[string]bool
	packages map[string]bool
}

// readNames reads the files below root, those of nested modules too.
func readNames(root string) (names, error) {
	n := names{map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p != root && strings.HasPrefix(d.Name(), ".") && d.Name() != ".ci" {
				return fs.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		n.addPath(filepath.ToSlash(rel))
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		f, err := readFile(root, p)
		if err != nil {
			return err
		}
		n.addFile(f)
		return nil
	})
	return n, err
}

func (n names) addPath(rel string) {
	n.files[rel] = true
	for folder := path.Dir(rel); folder != "."; folder = path.Dir(folder) {
		n.folders[folder] = true
	}
}

func (n names) addFile(f file) {
	n.packages[f.name] = true
	ast.Inspect(f.syntax, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.FuncDecl:
			if f.test && node.Recv == nil {
				n.tests[node.Name.Name] = true
			}
			n.declared[f.name+"."+node.Name.Name] = true
		case *ast.TypeSpec:
			n.declared[f.name+"."+node.Name.Name] = true
		case *ast.ValueSpec:
			n.declare(f.name, node.Names)
		case *ast.Field:
			n.declare(f.name, node.Names)
		}
		return true
	})
}

func (n names) declare(pkg string, idents []*ast.Ident) {
	for _, ident := range idents {
		n.declared[pkg+"."+ident.Name] = true
	}
}

var (
	block    = regexp.MustCompile("(?s)```.*?```")
	testName = regexp.MustCompile(`^(Test|Fuzz|Benchmark|Example)[A-Z]\w*$`)
	fileName = regexp.MustCompile(`^[\w./-]+\.(go|md|txt|sh|yaml|conf)$`)
	folder   = regexp.MustCompile(`^[\w.-]+/[\w./-]*$`)
	// makeTarget is a command in a span or at the begin of a line of a block.
	makeTarget = regexp.MustCompile("(?m)(?:`|^\\$ |^)make ([a-z][a-z0-9-]*)")
	qualified  = regexp.MustCompile(`^([a-z]\w*)((?:\.[A-Z]\w*)+)(\(.*\))?$`)
)

// unknown returns what the spans of a page name and the tree does not have.
// Names that are no test, file, folder or exported name of ours are left alone.
func (n names) unknown(page string) []string {
	var found []string
	for _, m := range span.FindAllStringSubmatch(block.ReplaceAllString(page, ""), -1) {
		name := m[1]
		switch q := qualified.FindStringSubmatch(name); {
		case testName.MatchString(name):
			if !n.tests[name] {
				found = append(found, name)
			}
		case fileName.MatchString(name):
			if !n.hasFile(name) && !slices.Contains(elsewhere, name) {
				found = append(found, name)
			}
		case q != nil && n.packages[q[1]]:
			for _, part := range strings.Split(q[2][1:], ".") {
				if !n.declared[q[1]+"."+part] {
					found = append(found, fmt.Sprintf("%s (%s)", name, part))
				}
			}
		case folder.MatchString(name):
			first, _, _ := strings.Cut(name, "/")
			if p := strings.TrimRight(name, "./"); n.folders[first] && !n.folders[p] && !n.files[p] {
				found = append(found, name)
			}
		}
	}
	return found
}

// hasFile reports whether a file has the name, with as much of the path before
// as the name gives.
func (n names) hasFile(name string) bool {
	for f := range n.files {
		if f == name || strings.HasSuffix(f, "/"+name) {
			return true
		}
	}
	return false
}

// astray returns what the steps of a path name and the tree does not have: a path
// in the second column, a file in the third one. A name without a folder belongs
// to the folder of the path before it in the row.
func (n names) astray(steps [][]string) []string {
	var found []string
	for _, step := range steps {
		within := ""
		named := span.FindAllStringSubmatch(step[1], -1)
		for _, m := range span.FindAllStringSubmatch(step[2], -1) {
			if fileName.MatchString(m[1]) {
				named = append(named, m)
			}
		}
		for _, m := range named {
			p := strings.TrimSuffix(m[1], "/")
			if !strings.Contains(p, "/") {
				p = path.Join(within, p)
			}
			switch {
			case n.files[p]:
				within = path.Dir(p)
			case n.folders[p]:
				within = p
			default:
				found = append(found, p)
			}
		}
	}
	return found
}
