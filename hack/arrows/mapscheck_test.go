// SPDX-License-Identifier: Apache-2.0

package arrows

import (
	"go/parser"
	"go/token"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// parse makes a file of the tree from its text.
func parse(t *testing.T, name, src string) file {
	t.Helper()
	fset := token.NewFileSet()
	syntax, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	require.NoError(t, err)
	f := file{path: name, pkg: path.Dir(name), name: strings.TrimSuffix(syntax.Name.Name, "_test"), test: strings.HasSuffix(name, "_test.go"), syntax: syntax, fset: fset}
	for _, spec := range syntax.Imports {
		f.imports = append(f.imports, strings.Trim(spec.Path.Value, `"`))
	}
	return f
}

func TestLocksOf(t *testing.T) {
	const source = `package cacher
import "sync"
type one struct {
	mu struct {
		sync.Mutex
		n int
	}
}
type two struct { plain sync.RWMutex }
type three[T any] struct { sync.Mutex; once sync.Once }
type four struct { inner struct { deep *sync.Mutex } }
var global sync.Mutex
func (o *one) method() { var local sync.Mutex; _ = local }
`
	require.Equal(t, []string{
		"cacher.four.inner.deep", "cacher.global", "cacher.one.method.local", "cacher.one.mu", "cacher.three", "cacher.two.plain",
	}, locksOf([]file{parse(t, "cacher/a.go", source)}))
	require.Empty(t, locksOf([]file{parse(t, "cacher/a_test.go", source), parse(t, "bench/a.go", source)}), "these have no rows")
	require.Equal(t, []string{"cacher/internal/x.T.mu"},
		locksOf([]file{parse(t, "cacher/internal/x/a.go", "package x\nimport s \"sync\"\ntype T struct { mu s.Mutex }")}))
	require.Empty(t, locksOf([]file{parse(t, "cacher/a.go", "package cacher\ntype T struct { mu other.Mutex }")}))
}

func TestStartsOf(t *testing.T) {
	const source = `package cacher
type one struct { tasks tasks.Group; config struct { Jobs *tasks.Group } }
func (o *one) statement() { go o.statement() }
func (o *one) nested() { func() { go o.statement() }() }
func (o one) task() { o.tasks.Run(nil) }
func (o *three[T]) other() { o.config.Jobs.Run(nil) }
func function() { context.AfterFunc(nil, nil); wg.Go(nil) }
func nothing(p *program) { p.Run(nil); p.start(); func() {}() }
`
	require.Equal(t, []string{
		"cacher.function", "cacher.one.nested", "cacher.one.statement", "cacher.one.task", "cacher.three.other",
	}, startsOf([]file{parse(t, "cacher/a.go", source)}))
	require.Empty(t, startsOf([]file{parse(t, "cacher/a_test.go", source), parse(t, "bench/a.go", source)}), "these have no rows")
	require.Equal(t, []string{"cacher/internal/tasks.Group.Close"}, startsOf([]file{parse(t, "cacher/internal/tasks/a.go", `package tasks
func (g *Group) Run() { go g.Close() }
func (g *Group) Close() { go g.Close() }
`)}), "what starts the tasks of others has no row")
}

func TestCheckMap(t *testing.T) {
	real := []string{"cacher.one.mu", "cacher/internal/x.one.mu", "cacher.two.mu"}
	for name, tc := range map[string]struct {
		named []string
		want  string
	}{
		"each has a row":           {[]string{"cacher.one.mu", "x.one.mu", "two.mu"}, ""},
		"a row is missing":         {[]string{"cacher.one.mu", "two.mu"}, "no row for the lock cacher/internal/x.one.mu"},
		"a row of nothing":         {[]string{"cacher.one.mu", "x.one.mu", "two.mu", "three.mu"}, "a row for the lock three.mu, which the source does not have"},
		"a row without a name":     {[]string{"cacher.one.mu", "x.one.mu", "two.mu", "all others"}, "a row for the lock all others"},
		"a part of a name is none": {[]string{"cacher.one.mu", "x.one.mu", "two.mu", "wo.mu"}, "a row for the lock wo.mu"},
		"a row that may be two":    {[]string{"one.mu", "two.mu"}, "may be any of cacher.one.mu, cacher/internal/x.one.mu"},
	} {
		t.Run(name, func(t *testing.T) {
			found := checkMap("lock", tc.named, real)
			if tc.want == "" {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			require.Contains(t, found[0], tc.want)
		})
	}
}

func TestRows(t *testing.T) {
	const doc = "# A\n\n## Locks\n\nText with `x`.\n\n| lock | guards |\n|---|---|\n| `a.mu`, `b.mu` | `c` |\n| none | – |\n\n## Else\n\n| x |\n|---|\n| `d` |\n"
	require.Equal(t, []string{"a.mu", "b.mu", "none"}, spans(rows(doc, "Locks"), 0))
	require.Equal(t, []string{"c", "–"}, spans(rows(doc, "Locks"), 1))
	require.Empty(t, rows(doc, "Goroutines"))
}
