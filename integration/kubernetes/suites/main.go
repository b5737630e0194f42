// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Command suites runs Kubernetes' own integration tests (test/integration of
// k8s.io/kubernetes) with the server under test on a watch cache of choice, counts what
// passes, and writes the table of docs/kubernetes.md.
//
// The tests are those of the module that go.mod names, in a copy that differs in where
// servers are configured only: see patch.go. The copy stays, so that a second run
// compiles what has changed. The tests of a package are compiled once for both caches,
// while those of the package before it run.
//
//	go run ./suites -implementation "watchcache shipped" -packages "job apiserver/apply"
//	go run ./suites -table
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The values of -implementation, which are those of --watch-cache-implementation.
const (
	ours    = "watchcache"
	shipped = "shipped"
)

// settings are the flags.
type settings struct {
	implementations []string
	packages        []string
	run             string // of the tests' names, a regular expression
	dir             string // where the copy, the programs and the logs are
	root            string // of this repository
	timeout         time.Duration
	jobs            int // packages whose tests run at the same time
	keep            bool
	again           bool // only the tests that have failed when they were kept
}

func main() {
	var s settings
	var implementations, packages string
	var onlyTable, verify bool
	flag.StringVar(&implementations, "implementation", ours, "the watch cache under the tests: ours, shipped, or both, separated by a space or a comma")
	flag.StringVar(&packages, "packages", "", "folders of test/integration, separated by spaces or commas")
	flag.StringVar(&s.run, "run", "", "the tests to run, as go test's -run")
	flag.StringVar(&s.dir, "dir", defaultDir(), "the folder of the copy, of what is compiled, and of the logs")
	flag.DurationVar(&s.timeout, "timeout", 20*time.Minute, "the time that the tests of one package may take")
	flag.IntVar(&s.jobs, "jobs", 1, "how many packages have their tests run at the same time")
	flag.BoolVar(&s.keep, "keep", false, "keep the counts in results.tsv and write the table")
	flag.BoolVar(&s.again, "again", false, "run only the tests that results.tsv has as failed, and keep what they come to now")
	flag.BoolVar(&onlyTable, "table", false, "write the table from results.tsv, and run nothing")
	flag.BoolVar(&verify, "verify", false, "check that the table is that of results.tsv, and run nothing")
	flag.Parse()
	s.implementations, s.packages = names(implementations), names(packages)
	if err := s.do(onlyTable, verify); err != nil {
		fmt.Fprintln(os.Stderr, "suites:", err)
		os.Exit(1)
	}
}

// names are those in a flag's value.
func names(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ' ' || r == ',' })
}

func defaultDir() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("watchcache-kubernetes-%d", os.Getuid()))
}

func (s *settings) do(onlyTable, verify bool) error {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/kube-watchcache/watchcache").Output()
	if err != nil {
		return fmt.Errorf("go list -m of the repository: %w; run in integration/kubernetes", err)
	}
	s.root = strings.TrimSpace(string(out))
	if onlyTable || verify {
		return s.writeTable(verify)
	}
	if err := s.validate(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	copied, err := s.prepare(ctx)
	if err != nil {
		return err
	}
	return s.all(ctx, copied)
}

func (s *settings) validate() error {
	for n, name := range s.implementations {
		if name != ours && name != shipped || slices.Contains(s.implementations[:n], name) {
			return fmt.Errorf("-implementation is %q: choose %q, %q or both", strings.Join(s.implementations, " "), ours, shipped)
		}
	}
	switch {
	case s.again && s.run != "":
		return errors.New("-again runs the tests that have failed: leave out -run")
	case len(s.implementations) == 0:
		return fmt.Errorf("-implementation is empty: choose %q, %q or both", ours, shipped)
	case len(s.packages) == 0:
		return errors.New("-packages is empty: name folders of test/integration")
	case s.jobs < 1:
		return fmt.Errorf("-jobs is %d: at least one package at a time has its tests run", s.jobs)
	}
	return nil
}
