// SPDX-License-Identifier: Apache-2.0

// Command mutation changes one operator, condition or call of a package at a time,
// without a write to the tree, and runs the package's tests, and then those of other
// packages. A change that no test notices survives: a test is missing, or the change
// makes no difference. docs/mutation.md has a row, with the reason, for each survivor
// that is known; the command fails if there is another one.
//
//	go run ./hack/mutation [flags] FOLDER...
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kube-watchcache/watchcache/hack/internal/gotest"
)

// page has the survivors that are known.
const page = "docs/mutation.md"

// atOnce is how many runs of go test there are at a time.
const atOnce = 2

// settings are the flags.
type settings struct {
	folders []string
	then    []string // folders whose tests run after a package's own
	tests   string   // -run
	file    string   // only mutants of files with this in their name
	most    time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var s settings
	then := flag.String("then", "", "folders, with commas between, whose tests run on what survives the package's own")
	flag.StringVar(&s.tests, "run", "", "go test's -run; empty: all tests")
	flag.StringVar(&s.file, "file", "", "only files with this in their name")
	flag.DurationVar(&s.most, "most", 10*time.Hour, "end after so long, with what is known by then")
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
	for _, folder := range append(s.folders[:len(s.folders):len(s.folders)], s.then...) {
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
	ends := time.Now().Add(s.most)
	var total tally
	for _, folder := range s.folders {
		counted, err := s.mutate(ctx, root, folder, string(known), ends)
		if err != nil {
			return err
		}
		fmt.Printf("%s: %s\n", folder, counted)
		total.add(counted)
	}
	fmt.Printf("all: %s\n", &total)
	if n := total.survived.Load(); n > 0 {
		return fmt.Errorf("%d mutants survive that %s does not explain", n, page)
	}
	return nil
}

// tally counts what has become of mutants.
type tally struct{ killed, hung, broken, explained, survived, left atomic.Int64 }

func (t *tally) add(other *tally) {
	t.killed.Add(other.killed.Load())
	t.hung.Add(other.hung.Load())
	t.broken.Add(other.broken.Load())
	t.explained.Add(other.explained.Load())
	t.survived.Add(other.survived.Load())
	t.left.Add(other.left.Load())
}

func (t *tally) String() string {
	return fmt.Sprintf("%d killed, %d hung, %d survived and are explained, %d survived; %d do not compile, for %d there was no time",
		t.killed.Load(), t.hung.Load(), t.explained.Load(), t.survived.Load(), t.broken.Load(), t.left.Load())
}

// mutate runs the tests on each mutant of a package.
func (s settings) mutate(ctx context.Context, root, folder, known string, ends time.Time) (*tally, error) {
	mutants, err := mutantsOf(root, folder)
	if err != nil {
		return nil, err
	}
	runs, err := s.asItIs(ctx, root, folder)
	if err != nil {
		return nil, err
	}
	counted := &tally{}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, m := range mutants {
		if !strings.Contains(m.file, s.file) {
			continue
		}
		group.Go(func() error {
			if time.Now().After(ends) {
				counted.left.Add(1)
				return nil
			}
			outcome, err := m.test(ctx, root, runs)
			if err != nil {
				return err
			}
			switch {
			case outcome == gotest.Failed:
				counted.killed.Add(1)
			case outcome == gotest.Hung:
				counted.hung.Add(1)
			case outcome == gotest.Broken:
				counted.broken.Add(1)
			case strings.Contains(known, m.row()):
				counted.explained.Add(1)
			default:
				counted.survived.Add(1)
				fmt.Printf("%s line %d\n", m.row(), m.line)
			}
			return nil
		})
	}
	return counted, group.Wait()
}

// hangAfter is how many times longer than without a change tests may take, and
// leastTimeout the least time that they have.
const (
	hangAfter    = 5
	leastTimeout = 30 * time.Second
)

// asItIs runs the tests without a change, and returns the runs for the mutants: the
// package's own tests and then those of others.
func (s settings) asItIs(ctx context.Context, root, folder string) ([]gotest.Run, error) {
	var runs []gotest.Run
	for _, pkg := range append([]string{folder}, s.then...) {
		r := gotest.Run{Dir: root, Package: pkg, Run: s.tests, Timeout: 10 * time.Minute}
		result, err := r.Do(ctx)
		switch {
		case err != nil:
			return nil, err
		case result.Outcome == gotest.Broken && strings.Contains(result.Output, "no test"):
			continue
		case result.Outcome != gotest.Passed:
			return nil, fmt.Errorf("the tests of %s fail without any change:\n%s", pkg, result.Output)
		}
		r.Timeout = max(leastTimeout, hangAfter*result.Took)
		runs = append(runs, r)
	}
	if len(runs) == 0 {
		return nil, fmt.Errorf("neither %s nor what -then names has tests: name a package with tests by -then", folder)
	}
	return runs, nil
}

// test runs the tests on the mutant until one notices.
func (m mutant) test(ctx context.Context, root string, runs []gotest.Run) (gotest.Outcome, error) {
	dir, err := os.MkdirTemp("", "mutation")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(m.file)))
	if err != nil {
		return 0, err
	}
	changed := filepath.Join(dir, filepath.Base(m.file))
	if err := os.WriteFile(changed, m.change(text), 0o600); err != nil {
		return 0, err
	}
	for _, r := range runs {
		r.Replaced = map[string]string{m.file: changed}
		result, err := r.Do(ctx)
		if err != nil || result.Outcome != gotest.Passed {
			return result.Outcome, err
		}
	}
	return gotest.Passed, nil
}
