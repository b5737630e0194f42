// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kube-watchcache/watchcache/hack/internal/gotest"
	"github.com/kube-watchcache/watchcache/hack/internal/overlay"
)

// binary is the tests of one folder, compiled with all mutants.
type binary struct {
	folder string // where the tests run
	file   string
	args   []string // the tests' own flags
	tests  []test   // the quickest first
	// most bounds the tests for one mutant by what they take without it, 0: all tests.
	most time.Duration
}

// test is one test function, or fuzz target, or example.
type test struct {
	name    string
	took    time.Duration
	reached map[int]bool // the mutants that the test comes by
}

// newBinary compiles the tests that net names, as "folder" or "folder flag...", with
// the files of s in the place of those of root.
func newBinary(ctx context.Context, root, dir, net string, s schema) (*binary, error) {
	words := strings.Fields(net)
	b := &binary{folder: filepath.Join(root, filepath.FromSlash(words[0])), args: words[1:]}
	replace := map[string]string{}
	for name, text := range s.texts {
		changed := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(changed, text, 0o600); err != nil {
			return nil, err
		}
		replace[filepath.Join(root, filepath.FromSlash(name))] = changed
	}
	replaced, err := overlay.Write(dir, replace)
	if err != nil {
		return nil, err
	}
	b.file = filepath.Join(dir, strings.Trim(strings.ReplaceAll(words[0], "/", "_"), "._")+".test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-w", "-overlay", replaced, "-o", b.file, words[0])
	build.Dir, build.Env = root, withoutCgo()
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compiling the tests of %s with the switches: %w\n%s", words[0], err, out)
	}
	if _, err := os.Stat(b.file); errors.Is(err, os.ErrNotExist) {
		return nil, nil // no test files
	}
	return b, nil
}

// exitsAlone bounds a test without a change.
const exitsAlone = 10 * time.Minute

// observe runs each test alone, without a change, to see how long the test takes and
// which mutants it comes by. A test that fails is left out, and said so: tests that
// count allocations may.
func (b *binary) observe(ctx context.Context, dir string) error {
	out, err := b.command(ctx, "-test.list=.").Output()
	if err != nil {
		return fmt.Errorf("listing the tests of %s: %w", b.folder, err)
	}
	names := regexp.MustCompile(`(?m)^(Test|Fuzz|Example)\w*$`).FindAllString(string(out), -1)
	only := regexp.MustCompile(b.flag("-test.run="))
	names = slices.DeleteFunc(names, func(name string) bool { return name == "TestMain" || !only.MatchString(name) })
	all := make([]*test, len(names))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i, name := range names {
		group.Go(func() error {
			notes := filepath.Join(dir, name+".reached")
			t := test{name: name, reached: map[int]bool{}}
			began := time.Now()
			timeout := exitsAlone
			if b.most > 0 {
				timeout = b.most
			}
			outcome, said, err := b.run(ctx, []test{t}, timeout, envReached+"="+notes)
			if err != nil {
				return err
			}
			if outcome == gotest.Hung && b.most > 0 {
				return nil // takes longer than that
			}
			if outcome != gotest.Passed {
				fmt.Printf("%s of %s is left out: it fails without a change\n%s", name, b.folder, tail(said))
				return nil
			}
			t.took = time.Since(began)
			text, err := os.ReadFile(notes)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			for word := range bytes.FieldsSeq(text) {
				id, err := strconv.Atoi(string(word))
				if err != nil {
					return err
				}
				t.reached[id] = true
			}
			all[i] = &t
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, t := range all {
		if t != nil {
			b.tests = append(b.tests, *t)
		}
	}
	slices.SortFunc(b.tests, func(a, b test) int { return cmp.Compare(a.took, b.took) })
	return nil
}

func tail(text []byte) []byte { return text[max(0, len(text)-2000):] }

// flag returns the value of one of the tests' flags, "" if it is not given.
func (b *binary) flag(name string) string {
	for _, arg := range b.args {
		if value, ok := strings.CutPrefix(arg, name); ok {
			return value
		}
	}
	return ""
}

// hangAfter is how many times longer than without a change tests may take, and
// leastTimeout the least time that they have. Nothing is compiled in that time.
const (
	hangAfter    = 5
	leastTimeout = 15 * time.Second
)

// quick is how long tests take that run before the others.
const quick = 2 * time.Second

// judge runs the tests that come by a mutant, the quick ones first, until one fails.
// judge reports whether there are any.
func (b *binary) judge(ctx context.Context, m mutant) (outcome gotest.Outcome, reached bool, err error) {
	var tests []test
	var took time.Duration
	for _, t := range b.tests {
		if !t.reached[m.id] {
			continue
		}
		if took += t.took; b.most > 0 && took > b.most {
			break
		}
		tests = append(tests, t)
	}
	for _, some := range split(tests) {
		var together time.Duration
		for _, t := range some {
			together += t.took
		}
		outcome, _, err := b.run(ctx, some, max(leastTimeout, hangAfter*together), fmt.Sprintf("%s=%d", envMutant, m.id))
		if err != nil || outcome != gotest.Passed {
			return outcome, true, err
		}
	}
	return gotest.Passed, len(tests) > 0, nil
}

// split returns the tests that together are quick, and the others.
func split(tests []test) [][]test {
	var together time.Duration
	for i, t := range tests {
		if together += t.took; together > quick && i > 0 {
			return [][]test{tests[:i], tests[i:]}
		}
	}
	if len(tests) == 0 {
		return nil
	}
	return [][]test{tests}
}

// run runs some of the tests.
func (b *binary) run(ctx context.Context, tests []test, timeout time.Duration, env string) (gotest.Outcome, []byte, error) {
	names := make([]string, len(tests))
	for i, t := range tests {
		names[i] = t.name
	}
	bounded, cancel := context.WithTimeout(ctx, timeout+10*time.Second)
	defer cancel()
	cmd := b.command(bounded, "-test.run=^("+strings.Join(names, "|")+")$", "-test.failfast", "-test.timeout="+timeout.String())
	cmd.Env = append(cmd.Env, env)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return 0, nil, ctx.Err()
	case bounded.Err() != nil, bytes.Contains(out, []byte("panic: test timed out after")):
		return gotest.Hung, out, nil
	case errors.As(err, &exit):
		return gotest.Failed, out, nil
	}
	return gotest.Passed, out, err
}

// mostMemory bounds a test, in KiB of data: a mutant may allocate for ever.
const mostMemory = 8 << 20

func (b *binary) command(ctx context.Context, args ...string) *exec.Cmd {
	all := append(append([]string{"-c", fmt.Sprintf(`ulimit -d %d; exec "$0" "$@"`, mostMemory), b.file}, b.args...), args...)
	if gotest.UsesRapid(b.folder) {
		all = append(all, "-rapid.nofailfile")
	}
	cmd := exec.CommandContext(ctx, "sh", all...)
	cmd.Dir, cmd.Env = b.folder, os.Environ()
	return cmd
}
