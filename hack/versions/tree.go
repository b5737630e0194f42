// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/build/constraint"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// tree writes the main module as it is released for the minor: without the modules
// inside it, this command, the checks of the repository as a whole and what is
// left out, with the held go.mod and go.sum, without the files of other minors.
// No user needs a build tag then.
func (m minor) tree(root, into string) error {
	if entries, err := os.ReadDir(into); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty", into)
	}
	listed, err := git(root, nil, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return err
	}
	files := strings.FieldsFunc(listed, func(r rune) bool { return r == 0 })
	inner := append([]string{"hack/versions/", "hack/arrows/", "hack/release_test.go"}, m.without...)
	for _, f := range files {
		if path.Base(f) == "go.mod" && f != "go.mod" {
			inner = append(inner, path.Dir(f)+"/")
		}
	}
	for _, f := range files {
		if inAny(f, inner) {
			continue
		}
		var change func([]byte) ([]byte, bool, error)
		to := f
		switch {
		case f == named+"/doc.go":
			to, change = m.tag+"/doc.go", m.swap
		case slices.Contains(pages, f):
			change = m.swap
		case strings.HasSuffix(f, ".go"):
			change = m.choose
		}
		from := filepath.Join(root, filepath.FromSlash(f))
		if _, err := os.Lstat(from); os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		if err := copyFile(from, filepath.Join(into, filepath.FromSlash(to)), change); err != nil {
			return err
		}
	}
	for name, from := range map[string]string{"go.mod": m.modfile(), "go.sum": m.sums()} {
		if _, err := os.Stat(filepath.Join(root, from)); os.IsNotExist(err) {
			continue // before the first tidy
		}
		if err := copyFile(filepath.Join(root, from), filepath.Join(into, name), nil); err != nil {
			return err
		}
	}
	return nil
}

// named is the package that names the minor of go.mod. A tree has one of its own tag.
const named = "k8s37"

// pages speak of the minor of go.mod, and may mention the other one.
var pages = []string{"README.md", "COMPATIBILITY.md", "docs/adopting.md"}

// swap exchanges the two minors in a text, and leaves out the lines about this command,
// which a tree does not have.
func (m minor) swap(text []byte) ([]byte, bool, error) {
	newest, held := strings.TrimPrefix(named, "k8s3"), strings.TrimPrefix(m.tag, "k8s3")
	exchange := strings.NewReplacer(named, m.tag, m.tag, named,
		"v0.3"+newest, "v0.3"+held, "v0.3"+held, "v0.3"+newest, "1.3"+newest, "1.3"+held, "1.3"+held, "1.3"+newest)
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, "hack/versions") {
			out.WriteString(exchange.Replace(line))
		}
	}
	return []byte(out.String()), true, nil
}

func inAny(file string, folders []string) bool {
	for _, folder := range folders {
		if strings.HasPrefix(file, folder) {
			return true
		}
	}
	return false
}

// choose returns a source file as the minor has it, and whether the minor has it.
func (m minor) choose(source []byte) (out []byte, has bool, err error) {
	before, rest := []byte(nil), source
	for len(rest) > 0 {
		line, after, _ := bytes.Cut(rest, []byte("\n"))
		if bytes.HasPrefix(line, []byte("package ")) {
			break
		}
		if !constraint.IsGoBuild(string(line)) {
			before, rest = source[:len(source)-len(after)], after
			continue
		}
		expr, err := constraint.Parse(string(line))
		if err != nil {
			return nil, false, err
		}
		if !mentions(expr, m.tag) {
			break
		}
		switch expr.String() {
		case m.tag:
			return m.reimported(append(bytes.Clone(before), bytes.TrimPrefix(after, []byte("\n"))...)), true, nil
		case "!" + m.tag:
			return nil, false, nil
		}
		return nil, false, fmt.Errorf("%s: want %s or !%s alone", line, m.tag, m.tag)
	}
	return m.reimported(source), true, nil
}

// reimported returns a source file with the import paths of the minor.
func (m minor) reimported(source []byte) []byte {
	for from, to := range m.imports {
		source = bytes.ReplaceAll(source, []byte(`"`+from+`/`), []byte(`"`+to+`/`))
	}
	return source
}

// overlay writes the files whose import paths differ in the minor into a folder, and
// returns the file that go build's -overlay takes.
func (m minor) overlay(folder string) (string, error) {
	listed, err := git(".", nil, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.go")
	if err != nil {
		return "", err
	}
	root, err := os.Getwd()
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for _, f := range strings.FieldsFunc(listed, func(r rune) bool { return r == 0 }) {
		source, err := os.ReadFile(filepath.FromSlash(f))
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		} else if err != nil {
			return "", err
		}
		changed := m.reimported(source)
		if bytes.Equal(source, changed) {
			continue
		}
		to := filepath.Join(root, folder, filepath.FromSlash(f))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(to, changed, 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, filepath.FromSlash(f))] = to
	}
	content, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(root, folder, "overlay.json")
	return file, os.WriteFile(file, content, 0o600)
}

func mentions(expr constraint.Expr, tag string) (found bool) {
	expr.Eval(func(t string) bool {
		found = found || t == tag
		return false
	})
	// Eval need not look at both sides of || and &&.
	expr.Eval(func(t string) bool {
		found = found || t == tag
		return true
	})
	return found
}

// copyFile copies a file, changed if change is not nil. change may leave it out.
func copyFile(from, to string, change func([]byte) ([]byte, bool, error)) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if change != nil {
		has := false
		if content, has, err = change(content); err != nil {
			return fmt.Errorf("%s: %w", from, err)
		} else if !has {
			return nil
		}
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, content, info.Mode().Perm())
}
