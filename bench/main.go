// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"

	"k8s.io/klog/v2"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// settings is what the flags say.
type settings struct {
	rows     *regexp.Regexp
	pairs    int
	size     size
	subjects []subject // empty: all
	out      string
	profile  string
	// resting is the number of goroutines when nothing is measured.
	resting int
}

func parse(args []string, errOut io.Writer) (settings, error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(errOut)
	rows := flags.String("rows", "", "measure the rows whose names match this regular expression")
	pairs := flags.Int("pairs", 5, "how often each subject is measured, in turn")
	objects := flags.Int("objects", full.objects, "objects in the cache")
	subjects := flags.String("subjects", "", "measure only these, for profiles: ours, shipped, floor, separated by commas")
	out := flags.String("out", "markdown", "what to print: markdown or json")
	profile := flags.String("cpuprofile", "", "write a CPU profile of the measurements to this file")
	if err := flags.Parse(args); err != nil {
		return settings{}, err
	}
	s := settings{pairs: *pairs, size: full, out: *out, profile: *profile}
	s.size.objects = *objects
	var err error
	if s.rows, err = regexp.Compile("(?i)" + *rows); err != nil {
		return s, fmt.Errorf("-rows: %w", err)
	}
	switch {
	case flags.NArg() > 0:
		return s, fmt.Errorf("unknown argument %q: there are only flags", flags.Arg(0))
	case s.pairs < 1:
		return s, fmt.Errorf("-pairs is %d: want at least 1", s.pairs)
	case s.size.objects < namespaces || s.size.objects%namespaces != 0:
		return s, fmt.Errorf("-objects is %d: want a multiple of %d", s.size.objects, namespaces)
	case s.out != "markdown" && s.out != "json":
		return s, fmt.Errorf("-out is %q: want markdown or json", s.out)
	}
	for name := range strings.SplitSeq(*subjects, ",") {
		if sub := subject(name); slices.Contains(allSubjects, sub) {
			s.subjects = append(s.subjects, sub)
		} else if name != "" {
			return s, fmt.Errorf("-subjects has %q: want ours, shipped or floor", name)
		}
	}
	return s, nil
}

func run(ctx context.Context, args []string, out, errOut io.Writer) error {
	s, err := parse(args, errOut)
	if err != nil {
		return err
	}
	prepareProcess()
	s.resting = runtime.NumGoroutine()
	if s.profile != "" {
		file, err := os.Create(s.profile)
		if err != nil {
			return fmt.Errorf("-cpuprofile: %w", err)
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return fmt.Errorf("-cpuprofile: %w", err)
		}
		defer pprof.StopCPUProfile()
		s.resting++
	}
	r := report{Environment: environment(args)}
	for _, row := range table() {
		if !s.rows.MatchString(row.name) {
			continue
		}
		results, err := measureRow(ctx, row, s)
		if err != nil {
			return fmt.Errorf("row %q: %w", row.name, err)
		}
		for _, result := range results {
			fmt.Fprintln(errOut, result)
		}
		r.Results = append(r.Results, results...)
	}
	r.Environment.LoadAfter = load()
	if s.out == "json" {
		return r.json(out)
	}
	return r.markdown(out)
}

// prepareProcess sets the globals that the shipped cacher reads.
func prepareProcess() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	prepareShipped()
}
