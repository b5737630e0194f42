// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
)

// program is the compiled tests of a package.
type program struct {
	pkg string
	dir string // where the tests run
	// path is where the program is; err is why there is none.
	path string
	err  error
}

// flat is a package's name as that of a file.
func flat(pkg string) string { return strings.ReplaceAll(pkg, "/", "-") }

// compile makes one program after the other. It ends once all of them are taken, or with
// ctx.
func (s *settings) compile(ctx context.Context, copied string, to chan<- program) {
	defer close(to)
	for _, pkg := range s.packages {
		p := program{pkg: pkg, dir: filepath.Join(copied, "test/integration", pkg),
			// By the name that go test gives it, which some tests know it by.
			path: filepath.Join(s.dir, "bin", flat(pkg), path.Base(pkg)+".test")}
		if p.err = os.MkdirAll(filepath.Dir(p.path), 0o755); p.err == nil {
			p.err = command(ctx, copied, "go", "test", "-c", "-vet=off", "-ldflags=-w -s", "-o", p.path, "./test/integration/"+pkg)
		}
		select {
		case to <- p:
		case <-ctx.Done():
			return
		}
	}
}

// all runs the tests of all packages, on each cache, and fails when any fails without a
// reason. While tests run, those of the next package are compiled. A package that does
// not compile does not keep the others from being run.
func (s *settings) all(ctx context.Context, copied string) error {
	ctx, cancel := context.WithCancel(ctx)
	compiled := make(chan program, 2) // so many wait for their tests to be run
	var running sync.WaitGroup
	running.Go(func() { s.compile(ctx, copied, compiled) })
	report := report{settings: s}
	for range s.jobs {
		running.Go(func() {
			for p := range compiled {
				for _, implementation := range s.implementations {
					if ctx.Err() == nil {
						report.add(s.on(ctx, p, implementation))
					}
				}
			}
		})
	}
	running.Wait()
	err := ctx.Err()
	cancel()
	if err != nil {
		return err
	}
	return report.err()
}

// on runs the tests of one package on one cache, and returns the arguments of report.add.
func (s *settings) on(ctx context.Context, p program, implementation string) (string, *result, []byte, error) {
	name := p.pkg + " on " + implementation
	if p.err != nil {
		return name, nil, nil, p.err
	}
	var failures bytes.Buffer
	if s.again {
		r, err := s.testAgain(ctx, p, implementation, &failures)
		return name, r, failures.Bytes(), err
	}
	r, err := s.test(ctx, p, implementation, s.run, &failures)
	return name, r, failures.Bytes(), err
}

// report is what the tests came to so far.
type report struct {
	*settings
	mu     sync.Mutex
	failed []string
}

// add prints what one package came to on one cache, under what its failures say, and
// keeps it if -keep is given.
func (r *report) add(name string, counted *result, failures []byte, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	os.Stdout.Write(failures)
	if err == nil {
		fmt.Println(counted)
		if unexplained := counted.unexplained(); len(unexplained) > 0 {
			r.failed = append(r.failed, name+": "+strings.Join(unexplained, ", "))
		}
		if r.keep {
			err = errors.Join(r.keepResult(counted), r.writeTable(false))
		}
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		r.failed = append(r.failed, fmt.Sprintf("%s: %v", name, err))
	}
}

func (r *report) err() error {
	if len(r.failed) > 0 {
		return fmt.Errorf("failed:\n%s", strings.Join(r.failed, "\n"))
	}
	return nil
}
