// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/build"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is one change of one file.
type mutant struct {
	file     string // relative to the root, with slashes
	line     int
	function string // with its receiver's type
	// before is the smallest expression or statement around the change, in one line,
	// and after what becomes of it.
	before, after string
	// The bytes from from to to are replaced by text.
	from, to int
	text     string
}

// row is how the page of explained survivors begins the row of a mutant. The row has
// no line number, which would change with every edit.
func (m mutant) row() string {
	cell := func(code string) string { return "`" + strings.ReplaceAll(code, "|", `\|`) + "`" }
	after := cell(m.after)
	if m.after == "" {
		after = "removed"
	}
	return fmt.Sprintf("| `%s` | `%s` | %s | %s |", m.file, m.function, cell(m.before), after)
}

// change returns the text of the file with the change.
func (m mutant) change(text []byte) []byte {
	return slices.Concat(text[:m.from], []byte(m.text), text[m.to:])
}

// boundaries is what becomes of an operator.
var boundaries = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.EQL: token.NEQ, token.NEQ: token.EQL,
	token.LAND: token.LOR, token.LOR: token.LAND,
	token.ADD: token.SUB, token.SUB: token.ADD,
	token.INC: token.DEC, token.DEC: token.INC,
	token.ADD_ASSIGN: token.SUB_ASSIGN, token.SUB_ASSIGN: token.ADD_ASSIGN,
}

// leftAlone are calls whose removal says nothing: what is locked is a matter of the
// race detector, and an assertion checks what holds.
var leftAlone = []string{"Lock", "Unlock", "RLock", "RUnlock", "assert", "checkSeal", "checkRV", "seal", "panic"}

// mutantsOf returns the mutants of the package in a folder, as the default build tags
// have it.
func mutantsOf(root, folder string) ([]mutant, error) {
	folder = path.Clean(strings.TrimPrefix(folder, "./"))
	pkg, err := build.ImportDir(filepath.Join(root, filepath.FromSlash(folder)), 0)
	if err != nil {
		return nil, err
	}
	var all []mutant
	for _, name := range pkg.GoFiles {
		text, err := os.ReadFile(filepath.Join(pkg.Dir, name))
		if err != nil {
			return nil, err
		}
		found, err := sites(path.Join(folder, name), text)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// sites returns the mutants of one file.
func sites(name string, text []byte) ([]mutant, error) {
	files := token.NewFileSet()
	syntax, err := parser.ParseFile(files, name, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	f := finder{name: name, text: text, files: files}
	for _, d := range syntax.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		f.function = functionName(fn)
		ast.Inspect(fn.Body, f.visit)
	}
	return f.found, nil
}

// finder finds the mutants of one file.
type finder struct {
	name, function string
	text           []byte
	files          *token.FileSet
	found          []mutant
}

func (f *finder) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		f.operator(n, n.OpPos, n.Op)
	case *ast.IncDecStmt:
		f.operator(n, n.TokPos, n.Tok)
	case *ast.AssignStmt:
		f.operator(n, n.TokPos, n.Tok)
	case *ast.IfStmt:
		f.negate(n.Cond)
	case *ast.ExprStmt:
		if call, ok := n.X.(*ast.CallExpr); ok && !slices.Contains(leftAlone, calledName(call)) {
			f.add(n, n.Pos(), n.End(), "")
		}
	}
	return true
}

// operator exchanges the operator of a node.
func (f *finder) operator(n ast.Node, at token.Pos, op token.Token) {
	if by, ok := boundaries[op]; ok {
		f.add(n, at, at+token.Pos(len(op.String())), by.String())
	}
}

// negate negates a condition, unless exchanging its operator does so.
func (f *finder) negate(cond ast.Expr) {
	if b, ok := cond.(*ast.BinaryExpr); ok && (b.Op == token.EQL || b.Op == token.NEQ) {
		return
	}
	f.add(cond, cond.Pos(), cond.End(), "!("+string(f.source(cond.Pos(), cond.End()))+")")
}

func (f *finder) add(around ast.Node, from, to token.Pos, text string) {
	m := mutant{
		file: f.name, line: f.files.Position(from).Line, function: f.function, text: text,
		from: f.offset(from), to: f.offset(to),
	}
	begin := f.offset(around.Pos())
	whole := f.source(around.Pos(), around.End())
	m.before = oneLine(whole)
	m.after = oneLine(slices.Concat(whole[:m.from-begin], []byte(text), whole[m.to-begin:]))
	f.found = append(f.found, m)
}

func (f *finder) offset(p token.Pos) int { return f.files.Position(p).Offset }

func (f *finder) source(from, to token.Pos) []byte { return f.text[f.offset(from):f.offset(to)] }

// longest is how much of an expression is shown.
const longest = 100

func oneLine(code []byte) string {
	if pretty, err := format.Source(code); err == nil {
		code = pretty
	}
	line := strings.Join(strings.Fields(string(bytes.TrimSpace(code))), " ")
	if len(line) > longest {
		return strings.ToValidUTF8(line[:longest], "") + "..."
	}
	return line
}

func calledName(call *ast.CallExpr) string {
	switch fn := call.Fun.(type) {
	case *ast.Ident:
		return fn.Name
	case *ast.SelectorExpr:
		return fn.Sel.Name
	}
	return ""
}

// functionName returns the name of a function, of a method with that of its type.
func functionName(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	typ := fn.Recv.List[0].Type
	for {
		switch t := typ.(type) {
		case *ast.StarExpr:
			typ = t.X
			continue
		case *ast.IndexExpr:
			typ = t.X
			continue
		case *ast.Ident:
			return t.Name + "." + fn.Name.Name
		}
		return fn.Name.Name
	}
}
