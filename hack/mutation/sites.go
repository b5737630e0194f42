// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// mutant is one change of one file.
type mutant struct {
	id       int    // what on(id) asks for, from 1
	file     string // relative to the root, with slashes
	line     int
	function string // with its receiver's type
	// before is the smallest expression or statement around the change, in one line,
	// and after what becomes of it.
	before, after string
	// node is what the change is about, and op the operator that is exchanged: ILLEGAL
	// if a condition is negated, or a call removed.
	node ast.Node
	op   token.Token
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
// race detector. assertions are calls that check what holds, in a build with the tag
// invariants: what they check is left alone, too.
var (
	leftAlone  = []string{"Lock", "Unlock", "RLock", "RUnlock", "panic"}
	assertions = []string{"assert", "checkSeal", "checkRV", "seal"}
)

// sites returns the mutants of one file. Operands that info does not know are taken for numbers.
func sites(name string, text []byte, files *token.FileSet, syntax *ast.File, info *types.Info) []mutant {
	f := finder{name: name, text: text, files: files, info: info}
	for _, d := range syntax.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		f.function = functionName(fn)
		ast.Inspect(fn.Body, f.visit)
	}
	return f.found
}

// finder finds the mutants of one file.
type finder struct {
	name, function string
	text           []byte
	files          *token.FileSet
	info           *types.Info
	found          []mutant
}

func (f *finder) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		if f.info.Types[n].Value == nil { // no constant
			f.operator(n, n.X, n.OpPos, n.Op)
		}
	case *ast.IncDecStmt:
		f.operator(n, n.X, n.TokPos, n.Tok)
	case *ast.AssignStmt:
		f.operator(n, n.Lhs[0], n.TokPos, n.Tok)
	case *ast.IfStmt:
		f.negate(n.Cond)
	case *ast.ExprStmt:
		call, ok := n.X.(*ast.CallExpr)
		if ok && slices.Contains(assertions, calledName(call)) {
			return false
		}
		if ok && !slices.Contains(leftAlone, calledName(call)) {
			f.add(n, token.ILLEGAL, n.Pos(), n.End(), "")
		}
	}
	return true
}

// operator exchanges the operator of a node, but not that of a concatenation.
func (f *finder) operator(n ast.Node, operand ast.Expr, at token.Pos, op token.Token) {
	by, ok := boundaries[op]
	if !ok || (op == token.ADD || op == token.ADD_ASSIGN) && isString(f.info.TypeOf(operand)) {
		return
	}
	f.add(n, op, at, at+token.Pos(len(op.String())), by.String())
}

func isString(t types.Type) bool {
	if t == nil {
		return false
	}
	basic, ok := t.Underlying().(*types.Basic)
	return ok && basic.Info()&types.IsString != 0
}

// negate negates a condition, unless exchanging its operator does so.
func (f *finder) negate(cond ast.Expr) {
	if b, ok := cond.(*ast.BinaryExpr); ok && (b.Op == token.EQL || b.Op == token.NEQ) {
		return
	}
	f.add(cond, token.ILLEGAL, cond.Pos(), cond.End(), "!("+string(f.source(cond.Pos(), cond.End()))+")")
}

func (f *finder) add(around ast.Node, op token.Token, from, to token.Pos, text string) {
	whole, begin := f.source(around.Pos(), around.End()), around.Pos()
	f.found = append(f.found, mutant{
		file: f.name, line: f.files.Position(from).Line, function: f.function, node: around, op: op,
		before: oneLine(whole),
		after:  oneLine(slices.Concat(whole[:from-begin], []byte(text), whole[to-begin:])),
	})
}

func (f *finder) source(from, to token.Pos) []byte {
	return f.text[f.files.Position(from).Offset:f.files.Position(to).Offset]
}

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
