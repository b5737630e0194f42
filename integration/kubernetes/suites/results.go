// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// result is what one package's tests came to on one cache.
type result struct {
	pkg, implementation string
	passed              int
	failed, skipped     []string
	// ran are the tests that began, in whatever way they ended.
	ran map[string]bool
	// again are those of the passed that failed before they were run by themselves.
	again []string
	// servers is how many servers were made that say what their watch cache is.
	servers int
	took    time.Duration
}

func (r *result) String() string {
	text := fmt.Sprintf("%-40s %-8s %s passed", r.pkg, r.implementation, r.share())
	if len(r.skipped) > 0 {
		text += fmt.Sprintf(", %d skipped", len(r.skipped))
	}
	text += fmt.Sprintf(", %d servers, %.0f s", r.servers, r.took.Seconds())
	if len(r.again) > 0 {
		text += ", passed when run again: " + strings.Join(r.again, " ")
	}
	if len(r.failed) > 0 {
		text += ", FAILED: " + strings.Join(r.failed, " ")
	}
	return text
}

// add takes over what a further run of the same package came to.
func (r *result) add(some *result) {
	r.passed += some.passed
	r.failed = append(r.failed, some.failed...)
	r.skipped = append(r.skipped, some.skipped...)
	maps.Copy(r.ran, some.ran)
	r.servers += some.servers
	r.took += some.took
}

func (r *result) share() string { return fmt.Sprintf("%d/%d", r.passed, r.passed+len(r.failed)) }

// key is by what results are told apart.
func (r *result) key() string { return r.pkg + "\t" + r.implementation }

// unexplained are the tests that failed and that reasons.tsv has no reason for.
func (r *result) unexplained() (tests []string) {
	for _, test := range r.failed {
		if reasonOf(r.pkg, test) == "" {
			tests = append(tests, test)
		}
	}
	return tests
}

// reasons has, for each test that does not pass, package, test and why.
//
//go:embed reasons.tsv
var reasons string

func reasonOf(pkg, test string) string {
	for line := range strings.Lines(reasons) {
		if fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t"); len(fields) == 3 && fields[0] == pkg && fields[1] == test {
			return fields[2]
		}
	}
	return ""
}

const resultsFile = "suites/results.tsv"

func (s *settings) file(name string) string {
	return filepath.Join(s.root, "integration/kubernetes", name)
}

// A line of results.tsv is package, cache, passed, failed, skipped, with names of tests
// separated by spaces.
func parseResults(text []byte) (all []*result, err error) {
	for line := range bytes.Lines(text) {
		fields := strings.Split(strings.TrimSuffix(string(line), "\n"), "\t")
		if len(fields) != 5 {
			return nil, fmt.Errorf("%s: %q has %d fields, not 5", resultsFile, line, len(fields))
		}
		passed, err := strconv.Atoi(fields[2])
		if err != nil {
			return nil, fmt.Errorf("%s: %q: %w", resultsFile, line, err)
		}
		all = append(all, &result{pkg: fields[0], implementation: fields[1], passed: passed,
			failed: strings.Fields(fields[3]), skipped: strings.Fields(fields[4])})
	}
	return all, nil
}

func formatResults(all []*result) []byte {
	slices.SortFunc(all, func(a, b *result) int { return strings.Compare(a.key(), b.key()) })
	var text []byte
	for _, r := range all {
		text = fmt.Appendf(text, "%s\t%s\t%d\t%s\t%s\n", r.pkg, r.implementation, r.passed, strings.Join(r.failed, " "), strings.Join(r.skipped, " "))
	}
	return text
}

// keepResult puts the result in the place of an earlier one. A part of the tests is no
// result.
func (s *settings) keepResult(r *result) error {
	if s.run != "" {
		return fmt.Errorf("-keep with -run: a part of the tests of %s is not a result", r.pkg)
	}
	if r.servers == 0 && len(r.failed) == 0 {
		return fmt.Errorf("%s: no server of these tests says what its watch cache is; the tests say nothing about it", r.pkg)
	}
	// Another run may keep a result at the same time.
	file, err := os.OpenFile(s.file(resultsFile), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := (folderLock{file}).flock(syscall.LOCK_EX); err != nil {
		return err
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return err
	}
	all, err := parseResults(text)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(other *result) bool { return other.key() == r.key() })
	return os.WriteFile(s.file(resultsFile), formatResults(append(all, r)), 0o644)
}
