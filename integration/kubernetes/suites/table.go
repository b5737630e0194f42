// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	page  = "docs/kubernetes.md"
	begin = "<!-- results: made by integration/kubernetes/suites -->\n"
	end   = "<!-- end of results -->\n"
)

// writeTable puts the table of results.tsv into the page, or checks that it is there.
func (s *settings) writeTable(verify bool) error {
	text, err := os.ReadFile(s.file(resultsFile))
	if err != nil {
		return err
	}
	all, err := parseResults(text)
	if err != nil {
		return err
	}
	path := filepath.Join(s.root, page)
	was, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(was), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return fmt.Errorf("%s has no place for the results between %q and %q", page, begin, end)
	}
	made := head + begin + table(all) + end + tail
	if made == string(was) {
		return nil
	}
	if verify {
		return fmt.Errorf("%s is not that of %s: run go run ./suites -table", page, resultsFile)
	}
	return os.WriteFile(path, []byte(made), 0o644)
}

// table is Markdown: the packages of which a test fails somewhere, the sum of all, then
// those tests with the reason. results.tsv has the rest.
func table(all []*result) string {
	byPackage := map[string]map[string]*result{}
	var packages []string
	for _, r := range all {
		if byPackage[r.pkg] == nil {
			byPackage[r.pkg] = map[string]*result{}
			packages = append(packages, r.pkg)
		}
		byPackage[r.pkg][r.implementation] = r
	}
	slices.Sort(packages)
	var b strings.Builder
	total := map[string]*result{ours: {}, shipped: {}}
	b.WriteString("\n| package | watchcache | shipped |\n|---|---|---|\n")
	for _, pkg := range packages {
		whole := true
		for _, name := range []string{ours, shipped} {
			r := byPackage[pkg][name]
			if r == nil || len(r.failed) > 0 {
				whole = false
			}
			if r != nil {
				total[name].passed += r.passed
				total[name].failed = append(total[name].failed, r.failed...)
			}
		}
		if !whole {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", pkg, cell(byPackage[pkg][ours]), cell(byPackage[pkg][shipped]))
		}
	}
	fmt.Fprintf(&b, "| all %d | %s | %s |\n", len(packages), total[ours].share(), total[shipped].share())

	b.WriteString("\n| package | test that does not pass | on | why |\n|---|---|---|---|\n")
	for _, pkg := range packages {
		on := map[string][]string{}
		for _, name := range []string{ours, shipped} {
			if r := byPackage[pkg][name]; r != nil {
				for _, test := range r.failed {
					on[test] = append(on[test], name)
				}
			}
		}
		var tests []string
		for test := range on {
			tests = append(tests, test)
		}
		slices.Sort(tests)
		for _, test := range tests {
			why := reasonOf(pkg, test)
			if why == "" {
				why = "**not explained yet**"
			}
			fmt.Fprintf(&b, "| %s | `%s` | %s | %s |\n", pkg, strings.TrimPrefix(test, "Test"), strings.Join(on[test], ", "), why)
		}
	}
	b.WriteString("\n")
	return b.String()
}

func cell(r *result) string {
	if r == nil {
		return "not run"
	}
	return r.share()
}
