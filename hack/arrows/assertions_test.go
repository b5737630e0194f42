// SPDX-License-Identifier: Apache-2.0

package arrows

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// plainFailures says where tests fail by the methods of testing.T, and why.
// Everywhere else they use require and assert, which print the difference. A
// path is a file or a folder.
var plainFailures = map[string]string{
	"conformance/example_test.go":    "shows the test of a backend, whose authors may not use testify",
	"hack/arrows":                    "a lint prints one line for each breach, and assert prints five",
	"watchcache/concurrency_test.go": "the readers compare millions of elements while others write: the time of an assertion for each would be taken from finding races",
}

// testTypes are the types of values that a test fails by. Benchmarks are left
// out: an assertion that holds takes time and memory, which they measure.
var testTypes = []string{"*testing.T", "*testing.F", "testing.TB", "*rapid.T"}

// testNames returns the names of parameters, receivers and fields in a package
// that have one of the testTypes, or a type of the package that embeds one.
func testNames(files []*ast.File) map[string]bool {
	of := slices.Clone(testTypes)
	fields := func(visit func(of ast.Node, field *ast.Field)) {
		for _, f := range files {
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.TypeSpec:
					if s, ok := n.Type.(*ast.StructType); ok {
						for _, field := range s.Fields.List {
							visit(n, field)
						}
					}
				case *ast.Field:
					visit(nil, n)
				}
				return true
			})
		}
	}
	fields(func(in ast.Node, field *ast.Field) {
		if spec, ok := in.(*ast.TypeSpec); ok && len(field.Names) == 0 && slices.Contains(testTypes, types.ExprString(field.Type)) {
			of = append(of, spec.Name.Name, "*"+spec.Name.Name)
		}
	})
	names := map[string]bool{}
	fields(func(_ ast.Node, field *ast.Field) {
		if slices.Contains(of, types.ExprString(field.Type)) {
			for _, name := range field.Names {
				names[name.Name] = true
			}
		}
	})
	return names
}

// plainFailure returns the calls in a file that fail a test by a method of one
// of the names.
func plainFailure(f *ast.File, names map[string]bool) []*ast.CallExpr {
	var found []*ast.CallExpr
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains([]string{"Error", "Errorf", "Fatal", "Fatalf", "Fail", "FailNow"}, method.Sel.Name) {
			return true
		}
		switch x := method.X.(type) {
		case *ast.Ident:
			ok = names[x.Name]
		case *ast.SelectorExpr:
			ok = names[x.Sel.Name]
		default:
			ok = false
		}
		if ok {
			found = append(found, call)
		}
		return true
	})
	return found
}

// Tests fail by require and assert, but where plainFailures says why not.
func TestTestsUseTestify(t *testing.T) {
	files, err := readTree(root)
	require.NoError(t, err)
	packages := map[string][]*ast.File{}
	for _, f := range files {
		packages[f.pkg] = append(packages[f.pkg], f.syntax)
	}
	needed := map[string]bool{}
	for _, f := range files {
		if !f.test || f.generated {
			continue
		}
		for _, call := range plainFailure(f.syntax, testNames(packages[f.pkg])) {
			exception := f.path
			if plainFailures[exception] == "" {
				exception = f.pkg
			}
			needed[exception] = true
			if plainFailures[exception] == "" {
				t.Errorf("%s: use require or assert of testify, which print the difference", f.fset.Position(call.Pos()))
			}
		}
	}
	for exception := range plainFailures {
		if !needed[exception] {
			t.Errorf("plainFailures lists %s, which uses testify only", exception)
		}
	}
}

func TestPlainFailures(t *testing.T) {
	const declarations = `package p
type fixture struct { t *testing.T; store *store }
type checker struct { *rapid.T }
func f(t *testing.T, tb testing.TB, b *testing.B, w *fixture, c *checker, lg *zap.Logger) {`
	for body, want := range map[string]int{
		`if err != nil { t.Fatal(err) }`:                                   1,
		`t.Errorf("%v", got); tb.Fatalf("no"); t.Error("no")`:              3,
		`t.Fail(); w.t.FailNow(); t.Helper()`:                              2,
		`c.Fatalf("no")`:                                                   1,
		`_ = fmt.Errorf("%s", err.Error()); log.Fatal(err)`:                0,
		`require.FailNow(t, "no"); w.store.Fail("list", err)`:              0,
		`b.Fatal(err); lg.Fatal("no")`:                                     0,
		`tb.(*testing.T).Run("x", func(rt *testing.T) { rt.Error("no") })`: 1,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "f_test.go", declarations+body+"}", parser.SkipObjectResolution)
		require.NoError(t, err, body)
		require.Len(t, plainFailure(f, testNames([]*ast.File{f})), want, body)
	}
}
