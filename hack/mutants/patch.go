// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kube-watchcache/watchcache/hack/internal/gotest"
)

// folder has the patches, below the root of the module.
const folder = "simulation/testdata/bugs"

// patch is one bug, as a difference to the tree. The lines before the difference
// say what is wrong and which tests find out:
//
//	bug: a watch skips the event that it was parked at
//	caught by: ./cacher TestScripts/slow
//	with: -race
//	hang: counts
//	regressions: 36, 84
//
// "with" has flags of go test, or of the package's tests, and may be missing, as "hang" may: with it a test that
// does not end has caught the bug. "regressions" are the rows of docs/regressions.md
// that the bug is like.
type patch struct {
	name        string
	bug         string
	pkg, tests  string // as in ./cacher and TestA|TestB/sub
	with        []string
	hang        bool
	regressions string
	files       []string // that are changed, relative to the root
}

var header = regexp.MustCompile(`^(bug|caught by|with|hang|regressions): (\S.*)$`)

// parse reads a patch.
func parse(name, text string) (patch, error) {
	p := patch{name: name}
	refuse := func(format string, args ...any) (patch, error) {
		return patch{}, fmt.Errorf("%s: %s", name, fmt.Sprintf(format, args...))
	}
	head, _, found := strings.Cut(text, "\n--- a/")
	if !found {
		return refuse("no difference follows the header")
	}
	for line := range strings.Lines(head) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "diff --git ") || strings.HasPrefix(line, "index ") {
			continue
		}
		m := header.FindStringSubmatch(line)
		if m == nil {
			return refuse("a line of the header is %q, want bug, caught by, with, hang or regressions, and a colon", line)
		}
		switch value := m[2]; m[1] {
		case "bug":
			p.bug = value
		case "caught by":
			p.pkg, p.tests, _ = strings.Cut(value, " ")
		case "with":
			p.with = strings.Fields(value)
		case "hang":
			if p.hang = value == "counts"; !p.hang {
				return refuse("hang is %q, want counts", value)
			}
		case "regressions":
			p.regressions = value
		}
	}
	if p.bug == "" {
		return refuse("the header has no bug")
	}
	if !strings.HasPrefix(p.pkg, "./") || p.tests == "" {
		return refuse("the header has no caught by with a package and a test, as in ./cacher TestScripts/slow")
	}
	for line := range strings.Lines(text) {
		if file, ok := strings.CutPrefix(strings.TrimSpace(line), "--- a/"); ok {
			if path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
				return refuse("%s is changed, want Go files that are no tests", file)
			}
			p.files = append(p.files, file)
		}
	}
	return p, nil
}

// read reads the patches of the tree at root, in the order of their names.
func read(root string) ([]patch, error) {
	names, err := filepath.Glob(filepath.Join(root, folder, "*.patch"))
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var patches []patch
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		p, err := parse(strings.TrimSuffix(filepath.Base(name), ".patch"), string(text))
		if err != nil {
			return nil, err
		}
		patches = append(patches, p)
	}
	return patches, nil
}

// apply writes the files that the patch changes, changed, below dir, and returns
// where they are by their path in the tree.
func (p patch) apply(ctx context.Context, root, dir string) (map[string]string, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	replaced := make(map[string]string, len(p.files))
	for _, file := range p.files {
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		to := filepath.Join(dir, filepath.FromSlash(file))
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return nil, err
		}
		if err := os.WriteFile(to, text, 0o600); err != nil {
			return nil, err
		}
		replaced[file] = to
	}
	cmd := exec.CommandContext(ctx, "git", "apply", "--whitespace=nowarn", filepath.Join(root, folder, p.name+".patch"))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir)) // dir is in no repository
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s does not apply: %w\n%s", p.name, err, out)
	}
	return replaced, nil
}

// run is the run of go test that catches the bug.
func (p patch) run(root string) gotest.Run {
	r := gotest.Run{Dir: root, Package: p.pkg, Run: gotest.Pattern(p.tests), Flags: p.with, Timeout: timeout}
	if p.hang {
		r.Timeout = timeoutHang
	}
	return r
}

// command is what a person types to run those tests on the tree as it is.
func (p patch) command() string {
	return strings.Join(append([]string{"go test", "-run", "'" + gotest.Pattern(p.tests) + "'", p.pkg}, p.with...), " ")
}
