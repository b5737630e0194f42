// SPDX-License-Identifier: Apache-2.0

package arrows

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// illustrated is the public packages that have an example at least.
var illustrated = []string{"cacher", "conformance", "informer", "metrics", "server", "storage/etcd3", "storage/etcd3/embedded", "storage/memory"}

// An example can be pasted into another module: it stands in a file of its own,
// which needs no other file and no internal package of ours.
func TestExamplesCanBePasted(t *testing.T) {
	files, err := readTree(root)
	require.NoError(t, err)
	var found []string
	for _, f := range files {
		if !f.test || strings.Contains("/"+f.pkg+"/", "/internal/") {
			continue
		}
		src, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(f.path)))
		require.NoError(t, err)
		if breaches, ok := checkExample(f.path, string(src)); ok {
			found = append(found, f.pkg)
			for _, breach := range breaches {
				t.Error(breach)
			}
		}
	}
	for _, pkg := range illustrated {
		require.Contains(t, found, pkg, "the package has no example")
	}
}

// checkExample returns what keeps the examples of a file from being pasted, and
// whether the file has examples.
func checkExample(name, src string) (breaches []string, ok bool) {
	f, err := parser.ParseFile(token.NewFileSet(), name, src, 0)
	if err != nil {
		return []string{err.Error()}, true
	}
	kinds := map[string]int{}
	for _, d := range f.Decls {
		if fn, isFunc := d.(*ast.FuncDecl); isFunc && fn.Recv == nil {
			kinds[testKind.FindString(fn.Name.Name)]++
		}
	}
	if kinds["Example"] == 0 {
		return nil, false
	}
	report := func(format string, args ...any) { breaches = append(breaches, name+": "+fmt.Sprintf(format, args...)) }
	if !strings.HasSuffix(f.Name.Name, "_test") {
		report("an example is in a package of its own: %s_test", f.Name.Name)
	}
	if kinds["Example"] > 1 || kinds["Test"]+kinds["Fuzz"]+kinds["Benchmark"] > 0 {
		report("a file with an example has no other example, test or benchmark")
	}
	imported := map[string]bool{}
	for _, spec := range f.Imports {
		to, _ := strconv.Unquote(spec.Path.Value)
		if strings.HasPrefix(to, module+"/") && strings.Contains(to+"/", "/internal/") {
			report("an example imports %s, which other modules can't", to)
		}
		imported[nameOf(spec, to)] = true
	}
	unknown := map[string]bool{}
	for _, ident := range f.Unresolved {
		if types.Universe.Lookup(ident.Name) == nil && !imported[ident.Name] {
			unknown[ident.Name] = true
		}
	}
	for _, ident := range slices.Sorted(maps.Keys(unknown)) {
		report("an example uses %s, which its file does not declare", ident)
	}
	return breaches, true
}

var (
	testKind     = regexp.MustCompile(`^(Example|Test|Fuzz|Benchmark)`)
	majorVersion = regexp.MustCompile(`^v[0-9]+$`)
)

// nameOf returns the name by which a file knows what it imports, by convention:
// the last part of the path that is not a version. API versions are imported with
// a name.
func nameOf(spec *ast.ImportSpec, imported string) string {
	if spec.Name != nil {
		return spec.Name.Name
	}
	if base := path.Base(imported); !majorVersion.MatchString(base) {
		return base
	}
	return path.Base(path.Dir(imported))
}

func TestCheckExample(t *testing.T) {
	const head = "package cacher_test\nimport (\n\"fmt\"\n\"k8s.io/klog/v2\"\nv1 \"k8s.io/api/core/v1\"\n)\n"
	for name, c := range map[string]struct{ src, want string }{
		"no example":         {"package cacher\nfunc TestA() { other() }", ""},
		"whole":              {head + "type pod v1.Pod\nfunc help(p pod) { klog.Info(len(p.Name)) }\nfunc ExampleNew() { var p pod; help(p); fmt.Println(true) }", ""},
		"another file's":     {head + "func ExampleNew() { fmt.Println(codec, klog.V, v1.Pod{}) }", "uses codec, which its file does not declare"},
		"two examples":       {head + "func ExampleNew() {}\nfunc ExampleNew_two() {}", "no other example"},
		"a test beside it":   {head + "func ExampleNew() {}\nfunc TestNew() {}", "no other example"},
		"inside the package": {"package cacher\nfunc ExampleNew() {}", "a package of its own: cacher_test"},
		"internal package":   {"package cacher_test\nimport \"" + module + "/internal/memstore\"\nfunc ExampleNew() { memstore.New() }", "imports " + module + "/internal/memstore"},
		"a room":             {"package cacher_test\nimport \"" + module + "/cacher/internal/match\"\nfunc ExampleNew() { match.New() }", "imports " + module + "/cacher/internal/match"},
		"another's internal": {"package cacher_test\nimport \"k8s.io/x/internal\"\nfunc ExampleNew() { internal.New() }", ""},
	} {
		breaches, _ := checkExample("a_test.go", c.src)
		if c.want == "" {
			require.Empty(t, breaches, name)
			continue
		}
		require.Len(t, breaches, 1, name)
		require.Contains(t, breaches[0], c.want, name)
	}
}
