// SPDX-License-Identifier: Apache-2.0

// Command mutation changes one operator, condition or call of a package at a time,
// without a write to the tree, and runs the package's tests, and then those of other
// packages. All changes of a package are compiled into one binary, each behind a
// switch; a test runs for the changes that it comes by. A change that no test notices survives: a test is missing, or the change
// makes no difference. hack/mutation/survivors.md has a row, with the reason, for each survivor
// that is known; the command fails if there is another one.
//
//	go run ./hack/mutation [flags] FOLDER...
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kube-watchcache/watchcache/hack/internal/gotest"
)

// page has the survivors that are known.
const page = "hack/mutation/survivors.md"

// atOnce is how many runs of go test there are at a time.
const atOnce = 2

// settings are the flags.
type settings struct {
	folders []string
	then    []string // folders whose tests run after a package's own, with the tests' flags
	file    string   // only mutants of files with this in their name
	most    time.Duration
	// For each mutant, the quickest tests of a package that together take no longer.
	own, each time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var s settings
	then := flag.String("then", "", "folders, with commas between, whose tests run on what survives the package's own; the tests' flags may follow each, as in \"./cacher -test.run=^TestWatch\"")
	flag.StringVar(&s.file, "file", "", "only files with this in their name")
	flag.DurationVar(&s.most, "most", 10*time.Hour, "end after so long, with what is known by then")
	flag.DurationVar(&s.own, "own", 0, "for each mutant, run only so many of the package's own tests, the quickest; 0: all")
	flag.DurationVar(&s.each, "each", 10*time.Second, "for each mutant, run only so many of a -then folder's tests, the quickest")
	flag.Parse()
	s.folders = flag.Args()
	if *then != "" {
		s.then = strings.Split(*then, ",")
	}
	if err := run(ctx, ".", s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, root string, s settings) error {
	if len(s.folders) == 0 {
		return errors.New("no folder is named, as in ./watchcache")
	}
	for _, net := range append(s.folders[:len(s.folders):len(s.folders)], s.then...) {
		folder, _, _ := strings.Cut(net, " ")
		if strings.HasSuffix(folder, "...") {
			return fmt.Errorf("%q is no folder: name each one, as in ./watchcache", folder)
		}
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	known, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		return err
	}
	counted, err := s.mutate(ctx, root, string(known))
	if err != nil {
		return err
	}
	var total tally
	for i, folder := range s.folders {
		fmt.Printf("%s: %s\n", folder, &counted[i])
		total.add(&counted[i])
	}
	fmt.Printf("all: %s\n", &total)
	if n := total.survived.Load(); n > 0 {
		return fmt.Errorf("%d mutants survive that %s does not explain", n, page)
	}
	return nil
}

// tally counts what has become of mutants.
type tally struct{ killed, hung, explained, survived, left atomic.Int64 }

func (t *tally) add(other *tally) {
	t.killed.Add(other.killed.Load())
	t.hung.Add(other.hung.Load())
	t.explained.Add(other.explained.Load())
	t.survived.Add(other.survived.Load())
	t.left.Add(other.left.Load())
}

func (t *tally) String() string {
	return fmt.Sprintf("%d killed, %d hung, %d survived and are explained, %d survived; for %d there was no time",
		t.killed.Load(), t.hung.Load(), t.explained.Load(), t.survived.Load(), t.left.Load())
}

// mutate runs the tests on each mutant, and counts what becomes of those of each
// folder.
func (s settings) mutate(ctx context.Context, root, known string) ([]tally, error) {
	ends := time.Now().Add(s.most)
	dir, err := os.MkdirTemp("", "mutation")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	all, err := schemaOf(root, s.folders)
	if err != nil {
		return nil, err
	}
	binaries, err := s.compile(ctx, root, dir, all)
	if err != nil {
		return nil, err
	}
	counted := make([]tally, len(s.folders))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, m := range all.mutants {
		if !strings.Contains(m.file, s.file) {
			continue
		}
		in := slices.IndexFunc(s.folders, func(folder string) bool { return path.Dir(m.file) == path.Clean(folder) })
		group.Go(func() error {
			if time.Now().After(ends) {
				counted[in].left.Add(1)
				return nil
			}
			outcome, reached, err := m.test(ctx, binaries)
			if err != nil {
				return err
			}
			counted[in].count(m, outcome, reached, known)
			return nil
		})
	}
	return counted, group.Wait()
}

// count counts a mutant, and prints one that survives.
func (t *tally) count(m mutant, outcome gotest.Outcome, reached bool, known string) {
	switch {
	case outcome == gotest.Failed:
		t.killed.Add(1)
	case outcome == gotest.Hung:
		t.hung.Add(1)
	case strings.Contains(known, m.row()):
		t.explained.Add(1)
	case reached:
		t.survived.Add(1)
		fmt.Printf("%s line %d\n", m.row(), m.line)
	default:
		t.survived.Add(1)
		fmt.Printf("%s line %d, where no test comes by\n", m.row(), m.line)
	}
}

// compile compiles the packages' own tests and then those of others, and runs each
// without a change.
func (s settings) compile(ctx context.Context, root, dir string, all schema) ([]*binary, error) {
	var binaries []*binary
	for i, net := range append(s.folders[:len(s.folders):len(s.folders)], s.then...) {
		own := filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(own, 0o700); err != nil {
			return nil, err
		}
		b, err := newBinary(ctx, root, own, net, all)
		if err != nil {
			return nil, err
		}
		if b == nil {
			continue
		}
		if b.most = s.each; i < len(s.folders) {
			b.most = s.own
		}
		if err := b.observe(ctx, own); err != nil {
			return nil, err
		}
		binaries = append(binaries, b)
	}
	if len(binaries) == 0 {
		return nil, errors.New("neither the packages nor what -then names has tests: name a package with tests by -then")
	}
	return binaries, nil
}

// test runs the tests on the mutant until one notices, and reports whether any test
// comes by.
func (m mutant) test(ctx context.Context, binaries []*binary) (outcome gotest.Outcome, reached bool, err error) {
	// Those of the package itself come first.
	ordered := slices.Clone(binaries)
	slices.SortStableFunc(ordered, func(a, b *binary) int { return cmp.Compare(m.from(b), m.from(a)) })
	for _, b := range ordered {
		outcome, here, err := b.judge(ctx, m)
		reached = reached || here
		if err != nil || outcome != gotest.Passed {
			return outcome, reached, err
		}
	}
	return gotest.Passed, reached, nil
}

// from returns 1 for the tests of the mutant's own package, and 0 for others.
func (m mutant) from(b *binary) int {
	if strings.HasSuffix(filepath.ToSlash(b.folder), "/"+path.Dir(m.file)) {
		return 1
	}
	return 0
}
