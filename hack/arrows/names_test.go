// SPDX-License-Identifier: Apache-2.0

package arrows

import (
	"fmt"
	"go/ast"
	"go/token"
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

// elsewhere lists names in our pages and comments that the tree does not have: files of
// other projects, and examples of what a reader writes.
var elsewhere = []string{"pkg/cmd/server/start.go", "pkg/apiserver/apiserver.go", "NAME.txt", "TestBackend"}

// upstreamFlags are flags of k8s.io/apiserver with the prefix of ours.
var upstreamFlags = []string{"watch-cache", "watch-cache-sizes"}

// historical pages name what older versions had.
var historical = []string{"CHANGELOG.md", "hack/mutation/survivors.md", "bench/results/"}

// All names in our pages exist: tests, files, folders and names of our packages between
// backquotes, targets of make, flags and metrics of the cache. A reader can follow the two
// paths in ARCHITECTURE.md by the names of files alone.
func TestNamesInPages(t *testing.T) {
	tree, err := readNames(root)
	require.NoError(t, err)
	for _, known := range []string{"TestNamesInPages", "cacher.New"} {
		require.True(t, tree.tests[known] || tree.declared[known], "the tree was not read whole: %s", known)
	}
	pages, err := readPages(root)
	require.NoError(t, err)
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	for page, text := range pages {
		if slices.ContainsFunc(historical, func(name string) bool { return strings.HasPrefix(page, name) }) {
			continue
		}
		for _, target := range makeTarget.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(string(makefile), "\n"+target[1]+":") {
				t.Errorf("%s names make %s, which is no target", page, target[1])
			}
		}
		for _, name := range tree.unknown(text) {
			t.Errorf("%s names %s, which does not exist", page, name)
		}
		for _, name := range tree.unknownSettings(text) {
			t.Errorf("%s names %s, which does not exist", page, name)
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

// The comments of Go files name files, pages, tests and flags that exist.
func TestNamesInComments(t *testing.T) {
	tree, err := readNames(root)
	require.NoError(t, err)
	files, err := readTree(root)
	require.NoError(t, err)
	checked := 0
	for _, f := range files {
		for _, comment := range f.syntax.Comments {
			text := comment.Text()
			for _, name := range commentName.FindAllString(text, -1) {
				checked++
				if !tree.knows(name) {
					t.Errorf("%s names %s, which does not exist", f.fset.Position(comment.Pos()), name)
				}
			}
			for _, name := range append(tree.unknownSettings(text), tree.unknownLinks(f.name, text)...) {
				t.Errorf("%s names %s, which does not exist", f.fset.Position(comment.Pos()), name)
			}
		}
	}
	require.NotZero(t, checked)
}

// knows reports whether the tree has the test or file that a comment names.
func (n names) knows(name string) bool {
	if testName.MatchString(name) {
		return n.tests[name] || slices.Contains(elsewhere, name)
	}
	return n.hasFile(name) || slices.Contains(elsewhere, name)
}

// A name that is gone is found in a page and in a comment, and its neighbors are not.
func TestNamesAreFound(t *testing.T) {
	tree, err := readNames(write(t, map[string]string{
		"cacher/list.go":      license + "\n\npackage cacher\n\nconst flag, metric = \"watch-cache-window\", \"watchcache_ready\"\n\ntype Config struct{ Window int }\n",
		"cacher/list_test.go": license + "\n\npackage cacher\n\nfunc TestList() {}\n",
	}))
	require.NoError(t, err)
	require.Equal(t, []string{"Config.Cut", "cut.go", "cacher/cut.go", "TestCut", "cacher.Cut (Cut)"},
		tree.unknown("`Config.Window`, `Config.Cut`, `cut.go`, `list.go`, `cacher/cut.go`, `cacher/list.go`, `TestCut`, `TestList`, `cacher.Cut`, `cacher.Config.Window`, `k8s.Cut`"))
	require.Equal(t, []string{"--watch-cache-cut", "watchcache_cut_total"},
		tree.unknownSettings("--watch-cache-window, --watch-cache-cut, --watch-cache-sizes=a#0, watchcache_ready, watchcache_ready_bucket, watchcache_cut_total, watchcache_*"))
	require.Equal(t, []string{"list.go", "cacher/cut.go", "TestCut"}, commentName.FindAllString("list.go, see cacher/cut.go and TestCut.", -1))
	require.Equal(t, []string{"[Cut]", "[cacher.Cut]"}, tree.unknownLinks("cacher", "[Cut], [Config.Window], [*Config], [cacher.Cut], [cacher.Config], [k8s.Cut]"))
	require.False(t, tree.knows("TestCut") || tree.knows("cut.go"))
	require.True(t, tree.knows("TestList") && tree.knows("list.go"))
}

// names holds what pages and comments may name.
type names struct {
	files, folders map[string]bool
	// tests is the functions of test files.
	tests map[string]bool
	// declared is what the packages of the module declare, fields and methods
	// included, with the name of the package: cacher.Config, cacher.Storage.
	declared map[string]bool
	packages map[string]bool
	// literals are the strings of Go files that may be a flag or a metric.
	literals map[string]bool
}

// readNames reads the files below root, those of nested modules too.
func readNames(root string) (names, error) {
	n := names{map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}}
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
		case *ast.BasicLit:
			if !f.test && node.Kind == token.STRING {
				for _, word := range setting.FindAllString(node.Value, -1) {
					n.literals[strings.TrimPrefix(word, "--")] = true
				}
			}
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
	makeTarget  = regexp.MustCompile("(?m)(?:`|^\\$ |^)make ([a-z][a-z0-9-]*)")
	configField = regexp.MustCompile(`^Config\.[A-Z]\w*$`) // of cacher
	// commentName is a file or a test in a comment.
	commentName = regexp.MustCompile(`\b(?:[\w-]+/)*[\w-]+\.(?:go|md)\b|\bTest[A-Z]\w+\b`)
	docLink     = regexp.MustCompile(`\[\*?(?:([a-z]\w*)\.)?([A-Z]\w*(?:\.[A-Z]\w*)*)\]`)
	// setting is a flag or a metric of the cache.
	setting   = regexp.MustCompile(`(?:--)?\bwatch-cache(?:-[a-z]+)*\b|\bwatchcache(?:_[a-z]+)+\b`)
	qualified = regexp.MustCompile(`^([a-z]\w*)((?:\.[A-Z]\w*)+)(\(.*\))?$`)
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
		case configField.MatchString(name):
			if !n.declared["cacher."+strings.TrimPrefix(name, "Config.")] {
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

// unknownSettings returns the flags and metrics of the cache that a text names and the
// tree does not have.
func (n names) unknownSettings(text string) []string {
	var found []string
	for _, name := range setting.FindAllString(text, -1) {
		flag, isFlag := strings.CutPrefix(name, "--")
		switch {
		case isFlag:
			if !n.literals[flag] && !slices.Contains(upstreamFlags, flag) {
				found = append(found, name)
			}
		case strings.Contains(name, "_"):
			series := seriesSuffix.ReplaceAllString(name, "")
			if !n.literals[name] && !n.literals[series] {
				found = append(found, name)
			}
		}
	}
	return found
}

// unknownLinks returns the doc links of a comment, with or without a package of ours, whose
// target is not declared.
func (n names) unknownLinks(pkg, text string) []string {
	var found []string
	for _, m := range docLink.FindAllStringSubmatch(text, -1) {
		in := pkg
		if m[1] != "" {
			in = m[1]
		}
		if !n.packages[in] || m[2] == strings.ToUpper(m[2]) { // ARGS is a placeholder
			continue
		}
		for _, part := range strings.Split(m[2], ".") {
			if !n.declared[in+"."+part] {
				found = append(found, m[0])
				break
			}
		}
	}
	return found
}

// seriesSuffix is what a histogram's series have behind its name.
var seriesSuffix = regexp.MustCompile(`_(bucket|count|sum)$`)

// hasFile reports whether a file has the name, with as much of the path before
// as the name gives.
func (n names) hasFile(name string) bool {
	name = strings.TrimPrefix(name, "./")
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
