// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// event is a line of go tool test2json.
type event struct{ Action, Test, Output string }

// test runs the tests of a package on one cache, and returns what they came to. A program
// that ends amid its tests, as one does whose server dies, is run again with those that
// are left. Each test that fails is run once more, by itself: Kubernetes' tests wait for
// some things for a few seconds, which are not enough on a busy machine. The whole
// output is in files in the folder of -dir; that of tests that fail goes to failures.
func (s *settings) test(ctx context.Context, p program, implementation, only string, failures io.Writer) (*result, error) {
	tests, err := s.list(ctx, p, implementation, only)
	if err != nil {
		return nil, err
	}
	r := &result{pkg: p.pkg, implementation: implementation, ran: map[string]bool{}}
	for only, left := only, tests; ; only = exactly(left...) {
		some, err := s.run1(ctx, p, implementation, only, failures)
		if err != nil {
			return nil, err
		}
		r.add(some)
		before := len(left)
		left = slices.DeleteFunc(slices.Clone(tests), func(test string) bool { return r.ran[test] })
		if len(left) == 0 {
			break
		}
		if len(left) == before {
			r.failed = append(r.failed, left...)
			break
		}
	}
	failed := r.failed
	r.failed = nil
	for _, test := range failed {
		alone := exactly(test)
		if test == wholePackage {
			alone = only
		}
		again, err := s.run1(ctx, p, implementation, alone, failures)
		switch {
		case err != nil:
			return nil, err
		case len(again.failed) > 0:
			r.failed = append(r.failed, test)
		case test == wholePackage:
			r.again = append(r.again, test)
		case again.passed+len(again.skipped) == 0:
			r.failed = append(r.failed, test)
		default:
			r.passed += again.passed
			r.skipped = append(r.skipped, again.skipped...)
			r.again = append(r.again, test)
		}
		r.servers += again.servers
		r.took += again.took
	}
	return r, nil
}

// testAgain runs the tests that have failed when they were kept, and returns what the
// package has come to with that.
func (s *settings) testAgain(ctx context.Context, p program, implementation string, failures io.Writer) (*result, error) {
	text, err := os.ReadFile(s.file(resultsFile))
	if err != nil {
		return nil, err
	}
	kept, err := parseResults(text)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(kept, func(r *result) bool { return r.pkg == p.pkg && r.implementation == implementation })
	switch {
	case i < 0:
		return nil, fmt.Errorf("%s has no result to begin with: run it without -again", resultsFile)
	case len(kept[i].failed) == 0:
		return nil, fmt.Errorf("%s has no test that has failed", resultsFile)
	case slices.Contains(kept[i].failed, wholePackage):
		return s.test(ctx, p, implementation, s.run, failures)
	}
	r, err := s.test(ctx, p, implementation, exactly(kept[i].failed...), failures)
	if err != nil {
		return nil, err
	}
	r.passed += kept[i].passed
	r.skipped = append(kept[i].skipped, r.skipped...)
	return r, nil
}

// exactly is the value of -test.run for these tests.
func exactly(tests ...string) string { return "^(" + strings.Join(tests, "|") + ")$" }

// list returns the tests that are to be run.
func (s *settings) list(ctx context.Context, p program, implementation, only string) (tests []string, err error) {
	only, _, _ = strings.Cut(only, "/")
	list := exec.CommandContext(ctx, p.path, "-test.list="+cmp.Or(only, "."))
	list.Dir, list.Env = p.dir, s.testEnvironment(implementation)
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the tests of %s: %w", p.pkg, err)
	}
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "Test") {
			tests = append(tests, line)
		}
	}
	if len(tests) == 0 {
		return nil, fmt.Errorf("%s has no test whose name matches %q", p.pkg, only)
	}
	return tests, nil
}

// testEnvironment is that of a program of tests.
func (s *settings) testEnvironment(implementation string) []string {
	return append(environment(),
		"PATH="+filepath.Join(s.dir, "bin")+string(os.PathListSeparator)+os.Getenv("PATH"),
		"WATCH_CACHE_IMPLEMENTATION="+implementation,
		// Nothing listens there: the tests are to start an etcd of their own, and not to
		// use one that happens to run.
		"KUBE_INTEGRATION_ETCD_URL=http://127.0.0.1:1",
		"ETCD_UNSAFE_NO_FSYNC=true")
}

// run1 runs the tests of a program whose names match only.
func (s *settings) run1(ctx context.Context, p program, implementation, only string, failures io.Writer) (*result, error) {
	logs, err := os.CreateTemp(s.dir, fmt.Sprintf("%s.%s.*.log", flat(p.pkg), implementation))
	if err != nil {
		return nil, err
	}
	defer logs.Close()
	args := []string{"tool", "test2json", p.path, "-test.v=test2json", "-test.timeout=" + s.timeout.String()}
	if only != "" {
		args = append(args, "-test.run="+only)
	}
	tests := exec.Command("go", args...)
	tests.Dir, tests.Env = p.dir, s.testEnvironment(implementation)
	tests.Stderr = logs
	// A group of its own, so that the tests and their etcd end with this process.
	tests.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	output, err := tests.StdoutPipe()
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	if err := tests.Start(); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	stopped := make(chan bool, 1)
	go func() { // ends with the tests, or ends them
		select {
		case <-done:
			stopped <- false
		case <-ctx.Done():
			stopped <- true
			_ = syscall.Kill(-tests.Process.Pid, syscall.SIGKILL)
		}
	}()
	r := &result{ran: map[string]bool{}}
	readErr := r.read(output, logs, failures)
	waitErr := tests.Wait()
	close(done)
	// The etcd of a program that has died is still there.
	_ = syscall.Kill(-tests.Process.Pid, syscall.SIGKILL)
	if <-stopped {
		return nil, ctx.Err()
	}
	if readErr != nil {
		return nil, readErr
	}
	r.took = time.Since(begun)
	if waitErr != nil && len(r.failed) == 0 {
		r.failed = append(r.failed, wholePackage)
	}
	return r, nil
}

// wholePackage is in the place of a test's name when a program fails though its tests
// don't, with goroutines that are left over for example.
const wholePackage = "(package)"

// read counts tests, not their parts. A test without an end, after a panic for example,
// has failed.
func (r *result) read(from io.Reader, logs, failures io.Writer) error {
	said, open := map[string]string{}, map[string]bool{}
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				e = event{Action: "output", Output: string(line)}
			}
			r.count(e, said, open, failures)
			if _, err := io.WriteString(logs, e.Output); err != nil {
				return err
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	for test := range open {
		r.failed = append(r.failed, test)
	}
	return nil
}

func (r *result) count(e event, said map[string]string, open map[string]bool, failures io.Writer) {
	if strings.Contains(e.Output, serverLine) {
		r.servers++
	}
	test, _, part := strings.Cut(e.Test, "/")
	if test == "" {
		return
	}
	switch {
	case e.Action == "output":
		if text := said[test] + e.Output; len(text) > maxSaid {
			said[test] = text[len(text)-maxSaid:]
		} else {
			said[test] = text
		}
	case part:
	case e.Action == "run":
		open[test], r.ran[test] = true, true
	case e.Action == "pass":
		r.passed++
		delete(open, test)
		delete(said, test)
	case e.Action == "skip":
		r.skipped = append(r.skipped, test)
		delete(open, test)
		delete(said, test)
	case e.Action == "fail":
		r.failed = append(r.failed, test)
		delete(open, test)
		fmt.Fprintf(failures, "%s\n", said[test])
		delete(said, test)
	}
}

// maxSaid bounds what is printed of a test that fails; the log has all of it.
const maxSaid = 16 << 10
