// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// event is a line of go tool test2json.
type event struct{ Action, Test, Output string }

// test compiles and runs the tests of a package, and returns what they came to. Each test
// that fails is run once more, by itself: Kubernetes' tests wait for some things for ten
// seconds, in which a busy machine does not start a server. The whole output is in files
// beside the program; that of tests that fail is printed.
func (s *settings) test(copied, pkg string, interrupted <-chan os.Signal) (*result, error) {
	program := filepath.Join(s.dir, "bin", strings.ReplaceAll(pkg, "/", "-")+".test")
	if err := command(copied, "go", "test", "-c", "-vet=off", "-ldflags=-w -s", "-o", program, "./test/integration/"+pkg); err != nil {
		return nil, err
	}
	r, err := s.run1(copied, pkg, program, s.run, interrupted)
	if err != nil {
		return nil, err
	}
	failed := r.failed
	r.failed = nil
	for _, test := range failed {
		only := "^" + test + "$"
		if test == wholePackage {
			only = s.run
		}
		again, err := s.run1(copied, pkg, program, only, interrupted)
		switch {
		case err != nil:
			return nil, err
		case len(again.failed) > 0:
			r.failed = append(r.failed, test)
		case test == wholePackage:
			r.again = append(r.again, test)
		default:
			r.passed++
			r.again = append(r.again, test)
		}
	}
	return r, nil
}

// run1 runs the tests of a program whose names match only.
func (s *settings) run1(copied, pkg, program, only string, interrupted <-chan os.Signal) (*result, error) {
	dir := filepath.Join(copied, "test/integration", pkg)
	logs, err := os.CreateTemp(s.dir, fmt.Sprintf("%s.%s.*.log", strings.ReplaceAll(pkg, "/", "-"), s.implementation))
	if err != nil {
		return nil, err
	}
	defer logs.Close()
	args := []string{"tool", "test2json", program, "-test.v=test2json", "-test.timeout=" + s.timeout.String()}
	if only != "" {
		args = append(args, "-test.run="+only)
	}
	tests := exec.Command("go", args...)
	tests.Dir = dir
	tests.Env = append(environment(),
		"PATH="+filepath.Join(s.dir, "bin")+string(os.PathListSeparator)+os.Getenv("PATH"),
		"WATCH_CACHE_IMPLEMENTATION="+s.implementation,
		// Nothing listens there: the tests are to start an etcd of their own, and not to
		// use one that happens to run.
		"KUBE_INTEGRATION_ETCD_URL=http://127.0.0.1:1",
		"ETCD_UNSAFE_NO_FSYNC=true")
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
		case <-interrupted:
			stopped <- true
			_ = syscall.Kill(-tests.Process.Pid, syscall.SIGKILL)
		}
	}()
	r := &result{pkg: pkg, implementation: s.implementation}
	readErr := r.read(output, logs, os.Stdout)
	waitErr := tests.Wait()
	close(done)
	if <-stopped {
		return nil, fmt.Errorf("interrupted")
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
		open[test] = true
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
