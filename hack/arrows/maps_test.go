// SPDX-License-Identifier: Apache-2.0

package arrows

import (
	"fmt"
	"go/ast"
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

// mapped is the packages whose locks and goroutines have a row each in the
// tables of docs/concurrency.md.
var mapped = []string{"cacher/...", "watchcache/...", "metrics/...", "server/...", "debug/...", "informer/...", "internal/shared", "internal/keptlists"}

// starter is the function by which the tasks of a cache are started. Its own go
// statement has no row: the calls of it have.
const starter = "cacher/internal/tasks.Group.Run"

// Each lock has a row in the table of locks, and each start of a goroutine in
// the table of goroutines, and each row names what exists.
func TestMaps(t *testing.T) {
	files, err := readTree(root)
	require.NoError(t, err)
	doc, err := os.ReadFile(filepath.Join(root, "docs", "concurrency.md"))
	require.NoError(t, err)
	locks, starts := locksOf(files), startsOf(files)
	require.NotEmpty(t, locks)
	require.NotEmpty(t, starts)
	for _, breach := range checkMap("lock", spans(rows(string(doc), "Locks"), 0), locks) {
		t.Error(breach)
	}
	for _, breach := range checkMap("goroutine", spans(rows(string(doc), "Goroutines"), 2), starts) {
		t.Error(breach)
	}
}

// checkMap compares the names that the rows of a table have with the names that
// the source has: folder, type and field or method, as in
// cacher/internal/source.Source.mu. A row may leave out what comes before a
// slash or a dot, as long as only one name ends like that.
func checkMap(what string, named, real []string) []string {
	var found []string
	has := map[string]bool{}
	for _, name := range named {
		var meant []string
		for _, r := range real {
			if r == name || strings.HasSuffix(r, "/"+name) || strings.HasSuffix(r, "."+name) {
				meant = append(meant, r)
				has[r] = true
			}
		}
		switch len(meant) {
		case 0:
			found = append(found, fmt.Sprintf("docs/concurrency.md has a row for the %s %s, which the source does not have", what, name))
		case 1:
		default:
			found = append(found, fmt.Sprintf("docs/concurrency.md has a row for the %s %s, which may be any of %s", what, name, strings.Join(meant, ", ")))
		}
	}
	for _, r := range real {
		if !has[r] {
			found = append(found, fmt.Sprintf("docs/concurrency.md has no row for the %s %s", what, r))
		}
	}
	return found
}

// rows returns the rows of the first table under a heading, split into cells.
func rows(doc, heading string) [][]string {
	_, section, _ := strings.Cut(doc, "\n## "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var out [][]string
	ruled := false
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		switch {
		case !strings.HasPrefix(line, "|"):
		case strings.HasPrefix(line, "|---"):
			ruled = true
		case ruled:
			out = append(out, strings.Split(strings.Trim(line, "|"), "|"))
		}
	}
	return out
}

var span = regexp.MustCompile("`([^`]+)`")

// spans returns what stands between backquotes in one column.
func spans(rows [][]string, column int) []string {
	var out []string
	for _, row := range rows {
		found := span.FindAllStringSubmatch(row[column], -1)
		if len(found) == 0 {
			out = append(out, strings.TrimSpace(row[column])) // a row that names nothing
		}
		for _, m := range found {
			if !slices.Contains(out, m[1]) {
				out = append(out, m[1])
			}
		}
	}
	return out
}

// locksOf returns the names of all mutexes of the mapped packages.
func locksOf(files []file) []string {
	found := map[string]bool{}
	for _, f := range files {
		if f.test || !covered(mapped, f.pkg) {
			continue
		}
		name, imported := importName(f, "sync")
		if !imported {
			continue
		}
		inspect(f, func(n ast.Node, within string) {
			if s, ok := n.(*ast.SelectorExpr); ok && (s.Sel.Name == "Mutex" || s.Sel.Name == "RWMutex") && isIdent(s.X, name) {
				found[within] = true
			}
		})
	}
	return slices.Sorted(maps.Keys(found))
}

// startsOf returns the functions of the mapped packages that start goroutines:
// by a go statement, by Run of a tasks.Group, which is a field or a variable of
// that type, or by a function of a library.
func startsOf(files []file) []string {
	groups := map[string]bool{}
	for _, f := range files {
		inspect(f, func(n ast.Node, _ string) {
			switch n := n.(type) {
			case *ast.Field:
				if isGroup(n.Type) {
					addNames(groups, n.Names)
				}
			case *ast.ValueSpec:
				if isGroup(n.Type) {
					addNames(groups, n.Names)
				}
			}
		})
	}
	found := map[string]bool{}
	for _, f := range files {
		if f.test || !covered(mapped, f.pkg) {
			continue
		}
		inspect(f, func(n ast.Node, within string) {
			switch n := n.(type) {
			case *ast.GoStmt:
				found[within] = true
			case *ast.CallExpr:
				if starts(n, groups) {
					found[within] = true
				}
			}
		})
	}
	delete(found, starter)
	return slices.Sorted(maps.Keys(found))
}

// libraryStarts is the functions and methods of libraries that start a
// goroutine: of context, time and clocks, singleflight, sync.WaitGroup, errgroup
// and wait.Group.
var libraryStarts = []string{"AfterFunc", "DoChan", "Go", "StartWithChannel", "StartWithContext"}

func starts(call *ast.CallExpr, groups map[string]bool) bool {
	called, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	if slices.Contains(libraryStarts, called.Sel.Name) {
		return true
	}
	if called.Sel.Name != "Run" {
		return false
	}
	switch x := called.X.(type) {
	case *ast.Ident:
		return groups[x.Name]
	case *ast.SelectorExpr:
		return groups[x.Sel.Name]
	}
	return false
}

func isGroup(typ ast.Expr) bool {
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	s, ok := typ.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "Group" && isIdent(s.X, "tasks")
}

func isIdent(x ast.Expr, name string) bool {
	ident, ok := x.(*ast.Ident)
	return ok && ident.Name == name
}

func addNames(to map[string]bool, names []*ast.Ident) {
	for _, name := range names {
		to[name.Name] = true
	}
}

// importName returns the name by which f knows a package.
func importName(f file, imported string) (string, bool) {
	i := slices.Index(f.imports, imported)
	if i < 0 {
		return "", false
	}
	if name := f.syntax.Imports[i].Name; name != nil {
		return name.Name, true
	}
	return path.Base(imported), true
}

// inspect visits each node of a file with the name of what declares it: the
// folder, and the function, type, variable and fields around it.
func inspect(f file, visit func(n ast.Node, within string)) {
	var stack []ast.Node
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if n == nil {
			stack = stack[:len(stack)-1]
			return true
		}
		within := []string{f.pkg}
		for _, outer := range stack {
			switch outer := outer.(type) {
			case *ast.FuncDecl:
				if outer.Recv != nil {
					within = append(within, receiver(outer.Recv.List[0].Type))
				}
				within = append(within, outer.Name.Name)
			case *ast.TypeSpec:
				within = append(within, outer.Name.Name)
			case *ast.ValueSpec:
				within = append(within, outer.Names[0].Name)
			case *ast.Field:
				if len(outer.Names) > 0 {
					within = append(within, outer.Names[0].Name)
				}
			}
		}
		visit(n, strings.Join(within, "."))
		stack = append(stack, n)
		return true
	})
}

// receiver returns the name of a receiver's type.
func receiver(typ ast.Expr) string {
	switch typ := typ.(type) {
	case *ast.StarExpr:
		return receiver(typ.X)
	case *ast.IndexExpr:
		return receiver(typ.X)
	case *ast.IndexListExpr:
		return receiver(typ.X)
	case *ast.Ident:
		return typ.Name
	}
	return strconv.Quote(fmt.Sprintf("%T", typ))
}
