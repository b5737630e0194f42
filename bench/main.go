// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
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
	"syscall"

	"k8s.io/klog/v2"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
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
	// boundary: the rows over HTTPS are measured, and not those in the process.
	boundary bool
	// growth: what things cost beside many others is measured, and nothing else.
	growth bool
	// breakdown: profiles are taken of them.
	breakdown bool
	// flags are more flags for the servers with our cache.
	flags []string
	// resting is the number of goroutines when nothing is measured.
	resting int
}

func parse(args []string, errOut io.Writer) (settings, error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(errOut)
	rows := flags.String("rows", "", "measure the rows whose names match this regular expression")
	pairs := flags.Int("pairs", 5, "how often each subject is measured, in turn")
	objects := flags.Int("objects", full.objects, fmt.Sprintf("objects in the cache; with -boundary the default is %d", fullBoundary.objects))
	subjects := flags.String("subjects", "", "measure only these, for profiles: ours, shipped, floor, with -boundary also plain, separated by commas")
	overHTTPS := flags.Bool("boundary", false, "measure servers over HTTPS, each a process, and not caches in this process")
	growing := flags.Bool("growth", false, "measure what an object, a read, an event and a watcher cost beside few and many others; takes 6 GB of memory")
	breakdown := flags.Bool("breakdown", true, "with -boundary: say from a profile into what the CPU time goes")
	ourFlags := flags.String("flags", "", "with -boundary: more flags for the servers with our cache, separated by spaces")
	repeats := flags.Int("repeats", full.repeats, "how often requests are repeated in a measurement, in percent")
	informers := flags.Int("informers", fullBoundary.informers, "with -boundary: informers of the three servers that are restarted")
	out := flags.String("out", "markdown", "what to print: markdown, json, or benchfmt, every measurement for benchstat")
	profile := flags.String("cpuprofile", "", "write a CPU profile of the measurements to this file")
	if err := flags.Parse(args); err != nil {
		return settings{}, err
	}
	s := settings{pairs: *pairs, size: full, out: *out, profile: *profile, boundary: *overHTTPS, growth: *growing, breakdown: *breakdown, flags: strings.Fields(*ourFlags)}
	if s.boundary {
		s.size = fullBoundary
	}
	flags.Visit(func(f *flag.Flag) {
		if f.Name == "objects" {
			s.size.objects = *objects
		}
	})
	s.size.repeats, s.size.informers = *repeats, *informers
	var err error
	if s.rows, err = regexp.Compile("(?i)" + *rows); err != nil {
		return s, fmt.Errorf("-rows: %w", err)
	}
	switch {
	case flags.NArg() > 0:
		return s, fmt.Errorf("unknown argument %q: there are only flags", flags.Arg(0))
	case s.pairs < 1:
		return s, fmt.Errorf("-pairs is %d: want at least 1", s.pairs)
	case s.boundary && s.growth:
		return s, errors.New("-growth and -boundary: want one of them")
	case s.boundary && s.size.objects < 5:
		return s, fmt.Errorf("-objects is %d: want at least 5", s.size.objects)
	case !s.boundary && (s.size.objects < namespaces || s.size.objects%namespaces != 0):
		return s, fmt.Errorf("-objects is %d: want a multiple of %d", s.size.objects, namespaces)
	case s.size.informers < restarted:
		return s, fmt.Errorf("-informers is %d: want at least %d", s.size.informers, restarted)
	case s.size.repeats < 1:
		return s, fmt.Errorf("-repeats is %d: want at least 1", s.size.repeats)
	case len(s.flags) > 0 && !s.boundary:
		return s, fmt.Errorf("-flags is %q: only servers have flags, with -boundary", *ourFlags)
	case s.out != "markdown" && s.out != "json" && s.out != "benchfmt":
		return s, fmt.Errorf("-out is %q: want markdown, json or benchfmt", s.out)
	}
	for name := range strings.SplitSeq(*subjects, ",") {
		if sub := subject(name); slices.Contains(allSubjects, sub) {
			s.subjects = append(s.subjects, sub)
		} else if name != "" {
			return s, fmt.Errorf("-subjects has %q: want ours, shipped, floor or plain", name)
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
	rows, done, err := s.table()
	if err != nil {
		return err
	}
	defer done()
	r := report{Environment: environment(args), Boundary: s.boundary}
	for _, row := range rows {
		results, parts, err := measureRow(ctx, row, s)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("interrupted in row %q", row.name)
		case err != nil:
			return fmt.Errorf("row %q: %w", row.name, err)
		}
		for _, result := range results {
			fmt.Fprintln(errOut, result)
		}
		r.Results = append(r.Results, results...)
		r.Shares = append(r.Shares, parts...)
	}
	r.Environment.LoadAfter = load()
	switch s.out {
	case "json":
		return r.json(out)
	case "benchfmt":
		return r.benchfmt(out)
	}
	return r.markdown(out)
}

// table returns the rows that were asked for, and compiles what they need; done
// removes that.
func (s settings) table() (chosen []row, done func(), err error) {
	all := table()
	switch {
	case s.boundary:
		all = boundaryTable(servers{}, s.size)
	case s.growth:
		all = growthRows()
	}
	chosen, err = s.choose(all)
	if err != nil || !s.boundary {
		return chosen, func() {}, err
	}
	dir, err := os.MkdirTemp("", "watchcache-bench-server-")
	if err != nil {
		return nil, nil, err
	}
	program, err := compileServers(dir)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, nil, err
	}
	chosen, err = s.choose(boundaryTable(servers{program: program, flags: s.flags}, s.size))
	return chosen, func() { _ = os.RemoveAll(dir) }, err
}

// choose returns the rows whose names match. That there is none is an error which
// names all.
func (s settings) choose(all []row) ([]row, error) {
	var chosen []row
	var names strings.Builder
	for _, row := range all {
		fmt.Fprintf(&names, "\n  %s", row.name)
		if s.rows.MatchString(row.name) {
			chosen = append(chosen, row)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("-rows %q: there is no such row; the rows are:%s", strings.TrimPrefix(s.rows.String(), "(?i)"), names.String())
	}
	return chosen, nil
}

// prepareProcess sets the globals that the shipped cacher reads.
func prepareProcess() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	prepareShipped()
}
