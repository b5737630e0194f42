// SPDX-License-Identifier: Apache-2.0

// Package script runs scripts that specify a package by example. A script is a text file. Below
// each line of four dashes is the expected output of the commands above it, up to the next blank
// line. Lines that start with # are prose. The test flag -rewrite updates the expected output.
//
// A package's tests define its commands; the README beside its scripts describes them.
package script

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "write what the scripts in testdata print back into them")

// nothing is the expected output of commands that print nothing.
const nothing = "nothing"

// Play runs a script's commands in order. run returns a command's output, lines without a trailing
// newline, or an error for a malformed command, which ends the test. Call Play once, in the test's
// goroutine.
type Play func(run func(*Command) (string, error))

// Test runs test in a subtest for each file that matches pattern, and then compares the output.
func Test(t *testing.T, pattern string, test func(*testing.T, Play)) {
	files, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			got := ""
			test(t, func(run func(*Command) (string, error)) {
				got, err = play(string(want), run)
			})
			require.NoError(t, err, file)
			if *rewrite {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			if at, difference := firstDifference(string(want), got); at > 0 {
				t.Errorf("%s:%d: %s\ngo test with -rewrite writes what the commands print into the file", file, at, difference)
			}
		})
	}
}

const context = 6

// firstDifference returns the 1-based line where two scripts begin to differ, with both texts, or
// 0.
func firstDifference(want, got string) (line int, difference string) {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	same := 0
	for same < len(w) && same < len(g) && w[same] == g[same] {
		same++
	}
	if same == len(w) && same == len(g) {
		return 0, ""
	}
	excerpt := func(lines []string) string {
		return strings.Join(lines[same:min(len(lines), same+context)], "\n\t")
	}
	return same + 1, fmt.Sprintf("got\n\t%s\nwant\n\t%s", excerpt(g), excerpt(w))
}

func play(script string, run func(*Command) (string, error)) (string, error) {
	var out bytes.Buffer
	var printed []string
	commands, below := 0, false
	for i, line := range strings.Split(strings.TrimSuffix(script, "\n"), "\n") {
		switch {
		case line == "":
			below = false
		case below:
			continue
		case line == "----":
			if len(printed) == 0 {
				printed = []string{nothing}
			}
			fmt.Fprintln(&out, line)
			for _, p := range printed {
				fmt.Fprintln(&out, p)
			}
			printed, commands, below = nil, 0, true
			continue
		case !strings.HasPrefix(line, "#"):
			command, err := parse(line)
			if err == nil {
				var p string
				if p, err = run(command); p != "" {
					printed = append(printed, p)
				}
			}
			if err == nil {
				err = command.leftOver()
			}
			if err != nil {
				return "", fmt.Errorf("line %d: %s: %w", i+1, line, err)
			}
			commands++
		}
		fmt.Fprintln(&out, line)
	}
	if commands > 0 {
		return "", fmt.Errorf("%d commands at the end without a line of dashes", commands)
	}
	return out.String(), nil
}
