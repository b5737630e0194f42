// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/watchcache"
)

var rewrite = flag.Bool("rewrite", false, "write what the scripts in testdata print back into them")

// TestScripts runs testdata/*.txt, the specification of the package by
// example. testdata/README.md describes the commands.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			got := runScript(t, file, string(want))
			if *rewrite {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			require.Equal(t, string(want), got)
		})
	}
}

// runScript executes the commands above each "----" line and returns the
// script with their output below it. A blank line ends the output.
func runScript(t *testing.T, file, script string) string {
	var out bytes.Buffer
	s := newScript()
	var printed []string
	below := false
	for i, line := range strings.Split(strings.TrimSuffix(script, "\n"), "\n") {
		switch {
		case line == "":
			below = false
		case below:
			continue
		case line == "----":
			below = true
			fmt.Fprintln(&out, line)
			for _, p := range printed {
				fmt.Fprintln(&out, p)
			}
			printed = nil
			continue
		case !strings.HasPrefix(line, "#"):
			p, err := s.run(line)
			if err != nil {
				t.Fatalf("%s:%d: %s: %v", file, i+1, line, err)
			}
			printed = append(printed, p)
		}
		fmt.Fprintln(&out, line)
	}
	require.Empty(t, printed, "%s: commands without a ---- line", file)
	return out.String()
}

// script is what a script's commands act on.
type script struct {
	state *watchcache.State
	kept  map[string]*watchcache.Snapshot
	now   int64
}

func newScript() *script {
	return &script{state: watchcache.New(roomy), kept: map[string]*watchcache.Snapshot{}}
}

// command is one line: a name, bare words, and name=value pairs in order.
type command struct {
	name  string
	words []string
	pairs [][2]string
}

func parse(line string) command {
	tokens := strings.Fields(line)
	c := command{name: tokens[0]}
	for _, token := range tokens[1:] {
		if name, value, ok := strings.Cut(token, "="); ok {
			c.pairs = append(c.pairs, [2]string{name, value})
		} else {
			c.words = append(c.words, token)
		}
	}
	return c
}

// take removes the pair with the name and returns its value, "" if it is not
// there.
func (c *command) take(name string) string {
	for i, p := range c.pairs {
		if p[0] == name {
			c.pairs = append(c.pairs[:i:i], c.pairs[i+1:]...)
			return p[1]
		}
	}
	return ""
}

// number is take for a number.
func (c *command) number(name string) (uint64, error) {
	text := c.take(name)
	if text == "" {
		return 0, nil
	}
	return strconv.ParseUint(text, 10, 64)
}

// word removes the first bare word and returns it.
func (c *command) word() string {
	if len(c.words) == 0 {
		return ""
	}
	w := c.words[0]
	c.words = c.words[1:]
	return w
}

func (s *script) run(line string) (string, error) {
	c := parse(line)
	commands := map[string]func(*command) (string, error){
		"new": s.new, "replace": s.replace, "apply": s.apply, "progress": s.progress, "compacted": s.compacted,
		"dispatched": s.dispatched, "trim": s.trim, "latest": s.latest, "at": s.at, "keep": s.keep, "show": s.show,
		"get": s.get, "since": s.since, "after": s.after, "stats": s.stats,
	}
	run, ok := commands[c.name]
	if !ok {
		return "", fmt.Errorf("no command %q", c.name)
	}
	out, err := run(&c)
	if err == nil && (len(c.words) > 0 || len(c.pairs) > 0) {
		err = fmt.Errorf("left over: %v %v", c.words, c.pairs)
	}
	return out, err
}
