// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Command suites runs Kubernetes' own integration tests (test/integration of
// k8s.io/kubernetes) with the server under test on a watch cache of choice, counts what
// passes, and writes the table of docs/kubernetes.md.
//
// The tests are those of the module that go.mod names, in a copy that differs in where
// servers are configured only: see patch.go. The copy stays, so that a second run
// compiles what has changed.
//
//	go run ./suites -implementation ours -packages "job apiserver/apply"
//	go run ./suites -table
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

// The values of -implementation, which are those of package install.
const (
	ours    = "ours"
	shipped = "shipped"
)

// settings are the flags.
type settings struct {
	implementation string
	packages       []string
	run            string // of the tests' names, a regular expression
	dir            string // where the copy, the programs and the logs are
	root           string // of this repository
	timeout        time.Duration
	keep           bool
}

func main() {
	var s settings
	var packages string
	var onlyTable, verify bool
	flag.StringVar(&s.implementation, "implementation", ours, "the watch cache under the tests: ours or shipped")
	flag.StringVar(&packages, "packages", "", "folders of test/integration, separated by spaces or commas")
	flag.StringVar(&s.run, "run", "", "the tests to run, as go test's -run")
	flag.StringVar(&s.dir, "dir", defaultDir(), "the folder of the copy, of what is compiled, and of the logs")
	flag.DurationVar(&s.timeout, "timeout", 20*time.Minute, "the time that the tests of one package may take")
	flag.BoolVar(&s.keep, "keep", false, "keep the counts in results.tsv and write the table")
	flag.BoolVar(&onlyTable, "table", false, "write the table from results.tsv, and run nothing")
	flag.BoolVar(&verify, "verify", false, "check that the table is that of results.tsv, and run nothing")
	flag.Parse()
	s.packages = strings.FieldsFunc(packages, func(r rune) bool { return r == ' ' || r == ',' })
	if err := s.do(onlyTable, verify); err != nil {
		fmt.Fprintln(os.Stderr, "suites:", err)
		os.Exit(1)
	}
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
	switch {
	case onlyTable, verify:
		return s.writeTable(verify)
	case s.implementation != ours && s.implementation != shipped:
		return fmt.Errorf("-implementation is %q: choose %q or %q", s.implementation, ours, shipped)
	case len(s.packages) == 0:
		return errors.New("-packages is empty: name folders of test/integration")
	}
	copied, err := s.prepare()
	if err != nil {
		return err
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	var failed []string
	for _, pkg := range s.packages {
		counted, err := s.test(copied, pkg, interrupted)
		if err != nil {
			return fmt.Errorf("%s: %w", pkg, err)
		}
		fmt.Println(counted)
		if s.keep {
			if err := s.keepResult(counted); err != nil {
				return err
			}
		}
		if unexplained := counted.unexplained(); len(unexplained) > 0 {
			failed = append(failed, fmt.Sprintf("%s: %s", pkg, strings.Join(unexplained, ", ")))
		}
	}
	if s.keep {
		if err := s.writeTable(false); err != nil {
			return err
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("failed on %s:\n%s", s.implementation, strings.Join(failed, "\n"))
	}
	return nil
}
