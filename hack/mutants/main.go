// SPDX-License-Identifier: Apache-2.0

// Command mutants puts bugs into the tree, one at a time and without a write to
// it, and runs the tests that are to find out. The bugs are the patches of
// simulation/testdata/bugs. The command fails if a bug is not caught, if a patch does
// not apply or compile any more, and if a test fails without a bug.
//
//	go run ./hack/mutants [flags] [part of a patch's name]...
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kube-watchcache/watchcache/hack/internal/gotest"
)

// timeout bounds the tests of one bug, timeoutHang those of a bug that may hang, and
// timeoutTogether those of a package without a bug.
const (
	timeout         = 4 * time.Minute
	timeoutHang     = time.Minute
	timeoutTogether = 20 * time.Minute
)

// atOnce is how many runs of go test there are at a time.
const atOnce = 2

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	lists := flag.Bool("list", false, "print the patches and the command that each is caught by, and run nothing")
	flag.Parse()
	if err := run(ctx, ".", *lists, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, root string, lists bool, names []string) error {
	patches, err := read(root)
	if err != nil {
		return err
	}
	if patches, err = named(patches, names); err != nil {
		return err
	}
	if lists {
		for _, p := range patches {
			fmt.Printf("%s\t%s\t%s\n", p.name, p.bug, p.command())
		}
		return nil
	}
	if err := asItIs(ctx, root, patches); err != nil {
		return err
	}
	verdicts, err := judge(ctx, root, patches)
	if err != nil {
		return err
	}
	show(os.Stdout, verdicts)
	if n := uncaught(verdicts); n > 0 {
		return fmt.Errorf("%d of %d bugs were not caught", n, len(verdicts))
	}
	fmt.Printf("%d bugs, all of them caught\n", len(verdicts))
	return nil
}

// named returns the patches whose names have one of the parts.
func named(patches []patch, parts []string) ([]patch, error) {
	if len(parts) == 0 {
		return patches, nil
	}
	var chosen []patch
	for _, p := range patches {
		if slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(p.name, part) }) {
			chosen = append(chosen, p)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no patch of %s has a name with %s", folder, strings.Join(parts, " or "))
	}
	return chosen, nil
}

// together returns one patch without a bug for all that name tests of one package
// with the same flags.
func together(patches []patch) []patch {
	of := map[string]*patch{}
	for _, p := range patches {
		id := p.pkg + " " + strings.Join(p.with, " ")
		if of[id] == nil {
			of[id] = &patch{pkg: p.pkg, with: p.with}
		}
		of[id].tests += "|" + p.tests
	}
	var all []patch
	for _, id := range slices.Sorted(maps.Keys(of)) {
		p := *of[id]
		names := strings.Split(p.tests[1:], "|")
		slices.Sort(names)
		p.tests = strings.Join(slices.Compact(names), "|")
		all = append(all, p)
	}
	return all
}

// asItIs runs the tests of the patches without a bug.
func asItIs(ctx context.Context, root string, patches []patch) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, p := range together(patches) {
		group.Go(func() error {
			tests := p.run(root)
			tests.Cached, tests.Timeout = true, timeoutTogether
			result, err := tests.Do(ctx)
			if err != nil {
				return err
			}
			if result.Outcome != gotest.Passed {
				return fmt.Errorf("%s fails without any bug:\n%s", p.command(), result.Output)
			}
			fmt.Printf("%s passes without a bug, %.0f s\n", p.pkg, result.Took.Seconds())
			return nil
		})
	}
	return group.Wait()
}

// verdict is what has become of one bug.
type verdict struct {
	patch  patch
	result gotest.Result
	err    error // why the bug was not caught
}

// judge runs the tests of each patch, with the bug.
func judge(ctx context.Context, root string, patches []patch) ([]verdict, error) {
	verdicts := make([]verdict, len(patches))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i, p := range patches {
		group.Go(func() error {
			v, err := judgeOne(ctx, root, p)
			verdicts[i] = v
			switch {
			case err != nil:
				return err
			case v.err != nil:
				fmt.Printf("%s: %v\n", p.name, v.err)
			default:
				fmt.Printf("%s: caught, %.0f s\n", p.name, v.result.Took.Seconds())
			}
			return nil
		})
	}
	return verdicts, group.Wait()
}

func judgeOne(ctx context.Context, root string, p patch) (verdict, error) {
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return verdict{}, err
	}
	defer os.RemoveAll(dir)
	v := verdict{patch: p}
	tests := p.run(root)
	if tests.Replaced, err = p.apply(ctx, root, dir); err != nil {
		v.err = err
		return v, ctx.Err()
	}
	if v.result, err = tests.Do(ctx); err != nil {
		return v, err
	}
	v.err = p.caught(v.result)
	return v, nil
}

// caught returns why the result does not show that the bug was caught, nil if it
// does.
func (p patch) caught(r gotest.Result) error {
	switch {
	case r.Outcome == gotest.Failed, r.Outcome == gotest.Hung && p.hang:
		return nil
	case r.Outcome == gotest.Hung:
		return fmt.Errorf("%s hangs, and the header does not say \"hang: counts\"", p.command())
	case r.Outcome == gotest.Passed:
		return fmt.Errorf("%s passes: the bug survives", p.command())
	}
	return errors.New("nothing was tested: " + strings.TrimSpace(r.Output))
}

func uncaught(verdicts []verdict) (n int) {
	for _, v := range verdicts {
		if v.err != nil {
			n++
		}
	}
	return n
}

// show prints one line for each bug.
func show(to io.Writer, verdicts []verdict) {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "patch\tbug\tcaught by\tseconds")
	for _, v := range verdicts {
		by := v.result.Test
		switch {
		case v.err != nil:
			by = "NOT CAUGHT"
		case v.result.Outcome == gotest.Hung:
			by = "hang of " + v.patch.tests
		case by == "":
			by = "end of the process in " + v.patch.tests
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%.1f\n", v.patch.name, v.patch.bug, by, v.result.Took.Seconds())
	}
	_ = w.Flush()
}
