// SPDX-License-Identifier: Apache-2.0

package arrows

import (
	"fmt"
	"go/ast"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
)

// check returns every breach of the rules that the source shows, one line each.
func check(files []file) []string {
	var found []string
	report := func(f file, node ast.Node, format string, args ...any) {
		where := f.path
		if node != nil {
			where = f.fset.Position(node.Pos()).String()
		}
		found = append(found, where+": "+fmt.Sprintf(format, args...))
	}
	for _, f := range files {
		checkImports(f, report)
		checkNames(f, report)
		if !f.test && covered(pure, f.pkg) {
			checkPure(f, report)
		}
		if !f.test && covered(core, f.pkg) {
			checkCore(f, report)
		}
	}
	return found
}

type reporter func(f file, node ast.Node, format string, args ...any)

func checkImports(f file, report reporter) {
	row := slices.IndexFunc(arrows, func(a arrow) bool { return covers(a.from, f.pkg) })
	if row < 0 {
		report(f, nil, "package %s is not in the table of packages", f.pkg)
		return
	}
	if f.test {
		return
	}
	for i, imported := range f.imports {
		if imported == "github.com/spf13/pflag" && covered(flagless, f.pkg) {
			report(f, f.syntax.Imports[i], "%s imports %s: flags are for package server", f.pkg, imported)
		}
		to, ok := ours(imported)
		if !ok {
			continue
		}
		at := f.syntax.Imports[i]
		for _, r := range restricted {
			if covers(r.packages, to) && !covered(r.users, f.pkg) {
				report(f, at, "%s imports %s: %s", f.pkg, to, r.reason)
			}
		}
		if to != f.pkg && !covered(arrows[row].to, to) {
			report(f, at, "%s imports %s: there is no such arrow", f.pkg, to)
		}
	}
}

func checkNames(f file, report reporter) {
	if !f.licensed && !f.generated {
		report(f, nil, "the first line is not %q with an empty line after it", license)
	}
	if slices.Contains(emptyNames, f.name) || slices.Contains(emptyNames, path.Base(f.pkg)) {
		report(f, f.syntax.Name, "package %s in %s: the name says nothing", f.name, f.pkg)
	}
	if f.generated || f.test {
		return
	}
	for _, d := range f.syntax.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			report(f, fn, "init function")
		}
	}
}

// checkPure holds a file to what the state machine promises.
func checkPure(f file, report reporter) {
	clock := ""
	for i, imported := range f.imports {
		spec := f.syntax.Imports[i]
		if covered(impureImports, imported) {
			report(f, spec, "%s imports %s", f.pkg, imported)
		}
		if imported == "time" {
			clock = "time"
			if spec.Name != nil {
				clock = spec.Name.Name
			}
			if clock == "." {
				report(f, spec, "%s imports time with a dot: its clock can't be told apart", f.pkg)
			}
		}
	}
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			report(f, n, "%s starts a goroutine", f.pkg)
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			if ok && clock != "" && x.Name == clock && slices.Contains(clockCalls, n.Sel.Name) {
				report(f, n, "%s reads the clock with time.%s", f.pkg, n.Sel.Name)
			}
		}
		return true
	})
}

// checkCore reports what a file of the core imports of the edge of a server.
func checkCore(f file, report reporter) {
	for i, imported := range f.imports {
		if covered(edgeImports, imported) {
			report(f, f.syntax.Imports[i], "%s imports %s: the core does not know how answers are encoded or sent", f.pkg, imported)
		}
	}
}

// checkClosure returns, for each root, the packages of never that it links,
// with the first one on the way that imports it. list is the text of
// `go list -deps -f {{.ImportPath}} {{.Imports}}`.
func checkClosure(list string, c closure) []string {
	importers := map[string][]string{}
	var linked []string
	for line := range strings.Lines(list) {
		fields := strings.Fields(strings.NewReplacer("[", " ", "]", " ").Replace(line))
		if len(fields) == 0 {
			continue
		}
		linked = append(linked, fields[0])
		for _, imported := range fields[1:] {
			importers[imported] = append(importers[imported], fields[0])
		}
	}
	var found []string
	for _, p := range linked {
		if covered(c.never, p) {
			found = append(found, fmt.Sprintf("%s is linked, through %s: %s", p, strconv.Quote(strings.Join(importers[p], " ")), c.reason))
		}
	}
	return found
}

// listDeps returns what checkClosure reads, for packages as the go command in
// dir names them.
func listDeps(dir string, packages ...string) (string, error) {
	args := append([]string{"list", "-deps", "-f", "{{.ImportPath}} {{.Imports}}"}, packages...)
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", cmd, err, stderr.String())
	}
	return string(out), nil
}
