// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/integration/kubernetes/insert"
)

// The page has the table of the results that are kept, and every failure a reason.
func TestTableIsFresh(t *testing.T) {
	s := settings{root: "../../.."}
	require.NoError(t, s.writeTable(true))
	text, err := os.ReadFile(s.file(resultsFile))
	require.NoError(t, err)
	all, err := parseResults(text)
	require.NoError(t, err)
	require.Equal(t, string(text), string(formatResults(all)))
	failed := map[string]bool{}
	for _, r := range all {
		require.Contains(t, []string{ours, shipped}, r.implementation)
		require.Empty(t, r.unexplained(), "%s on %s", r.pkg, r.implementation)
		for _, test := range r.failed {
			failed[r.pkg+"\t"+test] = true
		}
	}
	for line := range strings.Lines(reasons) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		require.Len(t, fields, 3, "package, test and reason: %q", line)
		require.True(t, failed[fields[0]+"\t"+fields[1]], "a reason for %s of %s, which passes", fields[1], fields[0])
	}
}

// Every place that is patched is in the version of Kubernetes that go.mod names.
func TestPatchFits(t *testing.T) {
	module, err := published(t.Context())
	require.NoError(t, err)
	for _, i := range insertions {
		source, err := os.ReadFile(filepath.Join(module.Dir, i.File))
		require.NoError(t, err)
		changed, err := i.Apply(string(source))
		require.NoError(t, err)
		require.Contains(t, changed, i.Text)
		if !i.Instead {
			require.Equal(t, len(source)+len(i.Text), len(changed))
		}
	}
}

func TestPatchRefuses(t *testing.T) {
	i := insert.Line{File: "config.go", Before: "here", Text: "new\n"}
	changed, err := i.Apply("a\n\there\nb\n")
	require.NoError(t, err)
	require.Equal(t, "a\nnew\n\there\nb\n", changed)
	i.Instead = true
	changed, err = i.Apply("a\n\there\nb\n")
	require.NoError(t, err)
	require.Equal(t, "a\nnew\nb\n", changed)
	_, err = i.Apply("a\n")
	require.EqualError(t, err, `config.go has no line "here": this version of Kubernetes needs another place`)
	_, err = i.Apply("here\nhere\n")
	require.EqualError(t, err, `config.go has the line "here" more than once: this version of Kubernetes needs another place`)
}

// Tests are counted, and not their parts; a test that never ends has failed; what a test
// that fails has said is printed.
func TestResultsOfTests(t *testing.T) {
	r := result{ran: map[string]bool{}}
	var failures strings.Builder
	require.NoError(t, r.read(strings.NewReader(`
{"Action":"run","Test":"TestA"}
{"Action":"output","Test":"TestA","Output":"`+serverLine+` watchcache\n"}
{"Action":"run","Test":"TestA/part"}
{"Action":"fail","Test":"TestA/part"}
{"Action":"fail","Test":"TestA"}
{"Action":"run","Test":"TestB"}
{"Action":"output","Test":"TestB","Output":"quiet\n"}
{"Action":"pass","Test":"TestB"}
{"Action":"run","Test":"TestC"}
{"Action":"skip","Test":"TestC"}
{"Action":"run","Test":"TestD"}
panic: no JSON
`), io.Discard, &failures))
	require.Equal(t, result{passed: 1, failed: []string{"TestA", "TestD"}, skipped: []string{"TestC"}, servers: 1,
		ran: map[string]bool{"TestA": true, "TestB": true, "TestC": true, "TestD": true}}, r)
	require.Contains(t, failures.String(), serverLine)
	require.NotContains(t, failures.String(), "quiet")
	require.Equal(t, "1/3", r.share())
}

func TestTable(t *testing.T) {
	made := table([]*result{
		{pkg: "b", implementation: shipped, passed: 3, skipped: []string{"TestX"}},
		{pkg: "a", implementation: ours, passed: 1, failed: []string{"TestY"}},
		{pkg: "a", implementation: shipped, passed: 2},
		{pkg: "c", implementation: ours, passed: 4},
		{pkg: "c", implementation: shipped, passed: 4},
	})
	require.NotContains(t, made, "| c |", "a package whose tests pass on both")
	for _, line := range []string{
		"| a | 1/2 | 2/2 |", "| b | not run | 3/3 |", "| all 3 | 5/6 | 9/9 |", "| a | `Y` | watchcache | **not explained yet** |",
	} {
		require.Contains(t, made, line+"\n")
	}
}

func TestPartIsNoResult(t *testing.T) {
	s := settings{root: t.TempDir(), run: "TestA"}
	require.ErrorContains(t, s.keepResult(&result{pkg: "job"}), "a part of the tests of job")
	s.run = ""
	require.ErrorContains(t, s.keepResult(&result{pkg: "job", passed: 3}), "no server of these tests")
}

// A run that needs another copy does not take away the one of a run that is under way.
func TestCopyInUse(t *testing.T) {
	s := settings{dir: t.TempDir()}
	first, err := s.share()
	require.NoError(t, err)
	second, err := s.share()
	require.NoError(t, err, "two runs share a copy")
	require.ErrorContains(t, second.exclusive(), "another run uses the copy")
	require.NoError(t, first.file.Close())
	require.NoError(t, second.exclusive())
}

func TestSettings(t *testing.T) {
	s := settings{implementations: names("watchcache, shipped"), packages: names("job"), jobs: 1}
	require.NoError(t, s.validate())
	for name, s := range map[string]settings{
		`-implementation is "watchcache watchcache"`: {implementations: names("watchcache watchcache"), packages: names("job"), jobs: 1},
		`-implementation is "none"`:                  {implementations: names("none"), packages: names("job"), jobs: 1},
		`-implementation is empty`:                   {packages: names("job"), jobs: 1},
		`-packages is empty`:                         {implementations: names("watchcache"), packages: names(" ,"), jobs: 1},
		`-jobs is 0`:                                 {implementations: names("watchcache"), packages: names("job")},
	} {
		require.ErrorContains(t, s.validate(), name)
	}
}

// Every package is compiled once and runs on each cache; one that does not compile, or
// whose tests fail, does not keep the others from being run.
func TestAll(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "repository")
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	testing := func(name, body string) {
		write("copy/test/integration/"+name+"/x_test.go", "package x\n\nimport (\"os\"; \"testing\")\n\nfunc TestX(t *testing.T) {\n"+body+"\n}\n")
	}
	const says = "println(`" + serverLine + "`, os.Getenv(`WATCH_CACHE_IMPLEMENTATION`))"
	write("copy/go.mod", "module example.com/copy\n\ngo 1.26\n")
	testing("broken", "no Go")
	testing("good/part", says)
	testing("fails", says+"\nif os.Getenv(`WATCH_CACHE_IMPLEMENTATION`) == `watchcache` { t.Fatal(`on ours`) }")
	// One test takes the program down with it, after another one that has failed.
	testing("dies", says+`
if _, err := os.Stat("died"); err != nil {
	if err := os.WriteFile("died", nil, 0o644); err != nil { t.Fatal(err) }
	os.Exit(255)
}
}

func TestAfter(t *testing.T) {}

func TestLast(t *testing.T) { t.Skip("for no reason")`)
	write("repository/integration/kubernetes/suites/results.tsv", "")
	write("repository/docs/kubernetes.md", begin+end)

	s := settings{implementations: names("watchcache shipped"), packages: names("broken good/part fails dies"), dir: filepath.Join(dir, "run"),
		root: root, timeout: time.Minute, jobs: 2, keep: true}
	require.NoError(t, os.MkdirAll(filepath.Join(s.dir, "bin"), 0o755))
	err := s.all(t.Context(), filepath.Join(dir, "copy"))
	require.ErrorContains(t, err, "broken on watchcache: ")
	require.ErrorContains(t, err, "broken on shipped: ")
	require.ErrorContains(t, err, "fails on watchcache: TestX")
	require.NotContains(t, err.Error(), "good/part")
	require.NotContains(t, err.Error(), "fails on shipped")
	kept, err := os.ReadFile(s.file(resultsFile))
	require.NoError(t, err)
	require.Equal(t, "dies\tshipped\t2\t\tTestLast\ndies\twatchcache\t2\t\tTestLast\nfails\tshipped\t1\t\t\nfails\twatchcache\t0\tTestX\t\ngood/part\tshipped\t1\t\t\ngood/part\twatchcache\t1\t\t\n", string(kept))
	page, err := os.ReadFile(filepath.Join(root, "docs/kubernetes.md"))
	require.NoError(t, err)
	require.Contains(t, string(page), "| fails | 0/1 | 1/1 |")

	// A test that has failed is run again by itself.
	testing("fails", says+"\nif len(os.Args) == 0 { t.Fatal() }\n}\n\nfunc TestNew(t *testing.T) {")
	s.packages, s.implementations, s.again = names("fails"), names(ours), true
	require.NoError(t, s.all(t.Context(), filepath.Join(dir, "copy")))
	kept, err = os.ReadFile(s.file(resultsFile))
	require.NoError(t, err)
	require.Contains(t, string(kept), "fails\twatchcache\t1\t\t\n")
	require.ErrorContains(t, s.all(t.Context(), filepath.Join(dir, "copy")), "has no test that has failed")
}
