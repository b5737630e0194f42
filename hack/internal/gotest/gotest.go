// SPDX-License-Identifier: Apache-2.0

// Package gotest runs go test on a tree in which some files are replaced, without
// a write to the tree: go's -overlay reads them from elsewhere. Packages that the
// files do not reach are neither copied nor compiled again.
package gotest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kube-watchcache/watchcache/hack/internal/overlay"
)

// Outcome is what has become of a run.
type Outcome int

// The outcomes of a run.
const (
	// Passed: tests ran, and all of them passed.
	Passed Outcome = iota
	// Failed: a test failed, or the process did.
	Failed
	// Hung: a test did not end within the time.
	Hung
	// Broken: nothing ran, because the code does not compile, or no test has the
	// name.
	Broken
)

// Run is one run of go test.
type Run struct {
	// Dir is the root of the module.
	Dir string
	// Replaced has the files that take the place of others: from their path,
	// relative to Dir and with slashes, to the path of the file to read instead.
	Replaced map[string]string
	// Package is a folder of the module, as in ./cacher. Run is a regular
	// expression for go test's -run; "" for all tests.
	Package, Run string
	// Flags are go test's, as in -race and -tags.
	Flags []string
	// Timeout bounds the tests, without what compiling takes.
	Timeout time.Duration
	// Cached: go may tell the outcome of an earlier run.
	Cached bool
}

// Result is the outcome of a Run.
type Result struct {
	Outcome Outcome
	// Test is the first test that failed, "" if none is named.
	Test string
	// Output is what go test has printed.
	Output string
	Took   time.Duration
}

// patience is for how long a run may take beside its Timeout, to compile and link.
const patience = 10 * time.Minute

// Do runs the tests. Do returns an error if go can't be started, or ctx ends.
func (r Run) Do(ctx context.Context) (Result, error) {
	temp, err := os.MkdirTemp("", "gotest")
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(temp)
	replaced, err := r.overlay(temp)
	if err != nil {
		return Result{}, err
	}
	bounded, cancel := context.WithTimeout(ctx, r.Timeout+patience)
	defer cancel()
	cmd := exec.CommandContext(bounded, "go", r.args(replaced)...)
	cmd.Dir = r.Dir
	cmd.Env = r.env()
	cmd.WaitDelay = time.Second
	began := time.Now()
	out, err := cmd.CombinedOutput()
	took := time.Since(began)
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return Result{}, ctx.Err()
	case bounded.Err() != nil:
		return Result{Outcome: Hung, Output: string(out), Took: took}, nil
	case err != nil && !errors.As(err, &exit):
		return Result{}, fmt.Errorf("running go test: %w", err)
	}
	return Result{Outcome: outcomeOf(out, err == nil), Test: failedTest(out), Output: string(out), Took: took}, nil
}

// overlay writes the file for -overlay.
func (r Run) overlay(dir string) (string, error) {
	replace := make(map[string]string, len(r.Replaced))
	for file, by := range r.Replaced {
		replace[filepath.Join(r.Dir, filepath.FromSlash(file))] = by
	}
	return overlay.Write(dir, replace)
}

func (r Run) args(replaced string) []string {
	args := []string{"test", "-vet=off", "-ldflags=-w", "-failfast", "-timeout", r.Timeout.String()}
	if !r.Cached {
		args = append(args, "-count=1")
	}
	if len(r.Replaced) > 0 {
		args = append(args, "-overlay", replaced)
	}
	if r.Run != "" {
		args = append(args, "-run", r.Run)
	}
	args = append(append(args, r.Package), r.Flags...) // a test's own flags end the packages
	if UsesRapid(filepath.Join(r.Dir, filepath.FromSlash(r.Package))) {
		args = append(args, "-rapid.nofailfile")
	}
	return args
}

// UsesRapid reports whether tests in the folder are made with pgregory.net/rapid, which
// would write the cases that fail to the tree, but for its flag -rapid.nofailfile.
func UsesRapid(folder string) bool {
	names, _ := filepath.Glob(filepath.Join(folder, "*_test.go"))
	return slices.ContainsFunc(names, func(name string) bool {
		text, err := os.ReadFile(name)
		return err == nil && bytes.Contains(text, []byte("\"pgregory.net/rapid\""))
	})
}

// env is the environment of make's steps: without cgo unless the race detector
// needs it, so that both have their builds in common.
func (r Run) env() []string {
	cgo := "CGO_ENABLED=0"
	if slices.Contains(r.Flags, "-race") {
		cgo = "CGO_ENABLED=1"
	}
	return append(os.Environ(), cgo)
}

// outcomeOf reads what go test has printed.
func outcomeOf(out []byte, ok bool) Outcome {
	switch {
	case bytes.Contains(out, []byte("[no tests to run]")), bytes.Contains(out, []byte("[no test files]")):
		return Broken
	case ok:
		return Passed
	case bytes.Contains(out, []byte("[build failed]")), bytes.Contains(out, []byte("[setup failed]")):
		return Broken
	case bytes.Contains(out, []byte("panic: test timed out after ")):
		return Hung
	case bytes.Contains(out, []byte("\nFAIL\t")), bytes.HasPrefix(out, []byte("FAIL\t")):
		return Failed
	}
	return Broken // go itself has failed
}

var failure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// failedTest returns the first test that failed, with its subtest.
func failedTest(out []byte) string {
	name := ""
	for _, m := range failure.FindAllSubmatch(out, -1) {
		// Subtests follow the test that they are of.
		if next := string(m[1]); name == "" || strings.HasPrefix(next, name+"/") {
			name = next
		}
	}
	return name
}

// Pattern returns go test's regular expression for tests by name: "TestA/sub|TestB"
// stands for exactly these.
func Pattern(names string) string {
	alternatives := strings.Split(names, "|")
	for i, name := range alternatives {
		parts := strings.Split(name, "/")
		for j, part := range parts {
			parts[j] = "^" + part + "$"
		}
		alternatives[i] = strings.Join(parts, "/")
	}
	return strings.Join(alternatives, "|")
}
