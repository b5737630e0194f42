// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// The environment of a test binary: the number of the mutant that is on, and the file
// that gets the numbers of those that are reached.
const (
	envMutant  = "MUTATION_ON"
	envReached = "MUTATION_REACHED"
)

// switches is the file that a package with all of its mutants gets. None is on unless
// the environment says so.
const switches = `package %s

import (
	mutationos "os"
	mutationstrconv "strconv"
	mutationatomic "sync/atomic"
)

var mutationIsOn, mutationNotes = func() (int, *mutationos.File) {
	id, _ := mutationstrconv.Atoi(mutationos.Getenv("` + envMutant + `"))
	name := mutationos.Getenv("` + envReached + `")
	if name == "" {
		return id, nil
	}
	notes, err := mutationos.OpenFile(name, mutationos.O_APPEND|mutationos.O_CREATE|mutationos.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	return id, notes
}()

var mutationReached [%d]mutationatomic.Bool

func mutationOn(id int) bool {
	if mutationNotes != nil && !mutationReached[id].Swap(true) {
		_, _ = mutationNotes.WriteString(mutationstrconv.Itoa(id) + "\n")
	}
	return id == mutationIsOn
}

type mutationNumber interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr | ~float32 | ~float64
}

func mutationPlus[T mutationNumber](id int, a, b T) T {
	if mutationOn(id) {
		return a - b
	}
	return a + b
}

func mutationMinus[T mutationNumber](id int, a, b T) T {
	if mutationOn(id) {
		return a + b
	}
	return a - b
}
`

// schema has some packages with all of their mutants, each behind a switch, so that
// one binary has them all.
type schema struct {
	mutants []mutant
	// texts are the files with the switches, by their names relative to the root.
	texts map[string][]byte
}

func schemaOf(root string, folders []string) (schema, error) {
	all := schema{texts: map[string][]byte{}}
	for _, folder := range folders {
		if err := all.add(root, path.Clean(strings.TrimPrefix(folder, "./"))); err != nil {
			return schema{}, err
		}
	}
	return all, nil
}

// add adds the package in a folder, as the default build tags without cgo have it.
func (all *schema) add(root, folder string) error {
	tags := build.Default
	tags.CgoEnabled = false
	pkg, err := tags.ImportDir(filepath.Join(root, filepath.FromSlash(folder)), 0)
	if err != nil {
		return err
	}
	files, texts, syntaxes := token.NewFileSet(), map[string][]byte{}, []*ast.File{}
	for _, name := range pkg.GoFiles {
		text, err := os.ReadFile(filepath.Join(pkg.Dir, name))
		if err != nil {
			return err
		}
		name = path.Join(folder, name)
		syntax, err := parser.ParseFile(files, name, text, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			return err
		}
		texts[name], syntaxes = text, append(syntaxes, syntax)
	}
	info, err := typesOf(root, folder, files, syntaxes)
	if err != nil {
		return err
	}
	for _, syntax := range syntaxes {
		name := files.Position(syntax.Package).Filename
		found := sites(name, texts[name], files, syntax, info)
		for i := range found {
			found[i].id = len(all.mutants) + i + 1
		}
		all.texts[name] = switched(texts[name], files, syntax, found)
		all.mutants = append(all.mutants, found...)
	}
	all.texts[path.Join(folder, "mutation_switches.go")] = fmt.Appendf(nil, switches, pkg.Name, len(all.mutants)+1)
	return nil
}

// typesOf checks the types of a package, with what go has compiled of the others.
func typesOf(root, folder string, files *token.FileSet, syntaxes []*ast.File) (*types.Info, error) {
	list := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}", "./"+folder)
	list.Dir, list.Env, list.Stderr = root, withoutCgo(), os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), "=")
		exports[name] = file
	}
	open := func(name string) (io.ReadCloser, error) { return os.Open(exports[name]) }
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	config := types.Config{Importer: importer.ForCompiler(files, "gc", open)}
	_, err = config.Check(folder, files, syntaxes, info)
	return info, err
}

func withoutCgo() []string { return append(os.Environ(), "CGO_ENABLED=0") }

// switched returns the text of a file with its mutants behind switches.
func switched(text []byte, files *token.FileSet, syntax *ast.File, mutants []mutant) []byte {
	s := switcher{text: text, files: files, of: map[ast.Node][]mutant{}, simple: map[ast.Node]bool{}}
	for _, m := range mutants {
		s.of[m.node] = append(s.of[m.node], m)
	}
	ast.Inspect(syntax, func(n ast.Node) bool {
		if s.of[n] != nil {
			s.nodes = append(s.nodes, n)
		}
		switch n := n.(type) {
		case *ast.ForStmt:
			s.simple[n.Init], s.simple[n.Post] = true, true
		case *ast.IfStmt:
			s.simple[n.Init] = true
		case *ast.SwitchStmt:
			s.simple[n.Init] = true
		case *ast.TypeSwitchStmt:
			s.simple[n.Init] = true
		case *ast.CommClause:
			s.simple[n.Comm] = true
		}
		return true
	})
	slices.SortStableFunc(s.nodes, func(a, b ast.Node) int {
		if a.Pos() != b.Pos() {
			return int(a.Pos() - b.Pos())
		}
		return int(b.End() - a.End())
	})
	return []byte(s.span(syntax.FileStart, syntax.FileEnd, nil))
}

// switcher puts switches into a file.
type switcher struct {
	text  []byte
	files *token.FileSet
	of    map[ast.Node][]mutant
	nodes []ast.Node // those with mutants, the outer before the inner
	// simple are statements where only a simple one may be, as in the head of a for.
	simple map[ast.Node]bool
}

// span returns the text between two places, with the switches of all nodes there but
// the one that is being written.
func (s *switcher) span(from, to token.Pos, but ast.Node) string {
	var b strings.Builder
	for _, n := range s.nodes {
		if n == but || n.Pos() < from || n.End() > to {
			continue
		}
		b.Write(s.source(from, n.Pos()))
		b.WriteString(s.node(n))
		from = n.End()
	}
	b.Write(s.source(from, to))
	return b.String()
}

// node returns the text of a node with its switches, and those inside of it.
func (s *switcher) node(n ast.Node) string {
	text := s.span(n.Pos(), n.End(), n)
	// The whole of a condition is negated outside of what happens to its operator.
	mutants := slices.Clone(s.of[n])
	slices.SortStableFunc(mutants, func(a, b mutant) int { return int(b.op) - int(a.op) })
	for _, m := range mutants {
		switch n := n.(type) {
		case *ast.ExprStmt:
			text = s.statement(n, "if !"+m.on()+" { "+text+" }")
		case *ast.IncDecStmt:
			x := s.span(n.X.Pos(), n.X.End(), nil)
			text = s.either(n, m, x+boundaries[m.op].String(), x+m.op.String())
		case *ast.AssignStmt:
			x, y := s.span(n.Lhs[0].Pos(), n.Lhs[0].End(), nil), s.span(n.Rhs[0].Pos(), n.Rhs[0].End(), nil)
			text = s.either(n, m, x+boundaries[m.op].String()+y, x+m.op.String()+y)
		case ast.Expr:
			if m.op == token.ILLEGAL {
				text = "(" + text + ") != " + m.on()
			} else {
				text = s.binary(n.(*ast.BinaryExpr), m)
			}
		}
	}
	return text
}

// binary has the text of an expression whose operator a switch exchanges. Each operand
// is evaluated as often as without the switch.
func (s *switcher) binary(n *ast.BinaryExpr, m mutant) string {
	x, y := s.span(n.X.Pos(), n.X.End(), nil), s.span(n.Y.Pos(), n.Y.End(), nil)
	// Comments and ends of lines that are behind the operator stay there.
	gap := string(s.source(n.OpPos+token.Pos(len(m.op.String())), n.Y.Pos()))
	op, by := m.op.String()+gap, boundaries[m.op].String()+gap
	switch m.op {
	case token.EQL, token.NEQ:
		return "((" + x + op + y + ") != " + m.on() + ")"
	case token.LAND, token.LOR: // a or b is not (not a and not b)
		return "(((" + x + ") != " + m.on() + op + "(" + y + ") != " + m.on() + ") != " + m.on() + ")"
	case token.ADD:
		return fmt.Sprintf("mutationPlus(%d, %s,%s%s)", m.id, x, gap, y)
	case token.SUB:
		return fmt.Sprintf("mutationMinus(%d, %s,%s%s)", m.id, x, gap, y)
	}
	return "(" + m.on() + " && (" + x + by + y + ") || !" + m.on() + " && (" + x + op + y + "))"
}

func (s *switcher) either(n ast.Stmt, m mutant, with, without string) string {
	return s.statement(n, "if "+m.on()+" { "+with+" } else { "+without+" }")
}

func (m mutant) on() string { return fmt.Sprintf("mutationOn(%d)", m.id) }

// statement makes a simple statement of one if there must be one.
func (s *switcher) statement(n ast.Stmt, text string) string {
	if s.simple[n] {
		return "func() { " + text + " }()"
	}
	return text
}

func (s *switcher) source(from, to token.Pos) []byte {
	return s.text[s.files.Position(from).Offset:s.files.Position(to).Offset]
}
