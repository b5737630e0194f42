// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// page has the table of the bugs, between two comments.
const (
	page      = "docs/bugs.md"
	pageBegin = "<!-- the table of patches: go run ./hack/mutants -page -->\n"
	pageEnd   = "<!-- end of the table -->\n"
)

// table is the patches for the page.
func table(patches []patch) string {
	var b strings.Builder
	b.WriteString("| patch | bug | caught by | regressions |\n|---|---|---|---|\n")
	for _, p := range patches {
		var tests []string
		for name := range strings.SplitSeq(p.tests, "|") {
			tests = append(tests, "`"+name+"`")
		}
		with := ""
		if len(p.with) > 0 {
			with = " with `" + strings.Join(p.with, " ") + "`"
		}
		if p.hang {
			with += ", which may hang"
		}
		fmt.Fprintf(&b, "| `%s` | %s | `%s` %s%s | %s |\n", p.name, p.bug, strings.TrimPrefix(p.pkg, "./"), strings.Join(tests, ", "), with, p.regressions)
	}
	return b.String()
}

// withTable returns the text of the page with the table of the patches.
func withTable(text string, patches []patch) (string, error) {
	before, rest, begins := strings.Cut(text, pageBegin)
	_, after, ends := strings.Cut(rest, pageEnd)
	if !begins || !ends {
		return "", fmt.Errorf("%s has no lines %q and %q", page, pageBegin, pageEnd)
	}
	return before + pageBegin + "\n" + table(patches) + "\n" + pageEnd + after, nil
}

// writePage writes the table into the page.
func writePage(root string, patches []patch) error {
	name := filepath.Join(root, page)
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	fresh, err := withTable(string(text), patches)
	if err != nil {
		return err
	}
	return os.WriteFile(name, []byte(fresh), 0o644)
}
