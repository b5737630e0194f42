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
	"time"

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

func (s *script) new(c *command) (string, error) {
	config := roomy
	var err error
	if history := c.take("history"); history != "" {
		if config.History, err = time.ParseDuration(history); err != nil {
			return "", err
		}
	}
	if bytes, err := c.number("bytes"); err != nil {
		return "", err
	} else if bytes > 0 {
		config.WindowBytes = int64(bytes)
	}
	atLeast, err := c.number("min")
	config.MinEvents = int(atLeast)
	*s = *newScript()
	s.state = watchcache.New(config)
	return "ok", err
}

// elements turns the remaining pairs, key=value or key=value@rv, to elements.
func (c *command) elements(rv uint64, size int64) ([]*watchcache.Element, error) {
	var all []*watchcache.Element
	for _, p := range c.pairs {
		value, own, ok := strings.Cut(p[1], "@")
		elementRV := rv
		if ok {
			var err error
			if elementRV, err = strconv.ParseUint(own, 10, 64); err != nil {
				return nil, err
			}
		}
		e := element(p[0], elementRV, value)
		e.Size = size
		all = append(all, e)
	}
	c.pairs = nil
	return all, nil
}

func (s *script) replace(c *command) (string, error) {
	rv, err := c.number("rv")
	if err != nil {
		return "", err
	}
	size, err := c.number("size")
	if err != nil {
		return "", err
	}
	all, err := c.elements(rv, int64(size))
	if err != nil {
		return "", err
	}
	if duplicates := s.state.Replace(all, rv); duplicates > 0 {
		return fmt.Sprintf("ok, %d duplicate", duplicates), nil
	}
	return "ok", nil
}

func (s *script) apply(c *command) (string, error) {
	types := map[string]watchcache.EventType{
		"add": watchcache.Added, "modify": watchcache.Modified, "delete": watchcache.Deleted, "nonsense": 9,
	}
	what := c.word()
	eventType, ok := types[what]
	if !ok {
		return "", fmt.Errorf("no change %q", what)
	}
	rv, err := c.number("rv")
	if err != nil {
		return "", err
	}
	size, err := c.number("size")
	if err != nil {
		return "", err
	}
	if err := s.moveTime(c.take("now")); err != nil {
		return "", err
	}
	all, err := c.elements(rv, int64(size))
	if err != nil {
		return "", err
	}
	if len(all) != 1 {
		return "", fmt.Errorf("one element, not %d", len(all))
	}
	applied, err := s.state.Apply(watchcache.Change{Type: eventType, Element: all[0], RV: rv, Received: s.now})
	if err != nil {
		return refused(err), nil
	}
	return showEvent(applied.Event) + outcome(applied), nil
}

// outcome writes what has happened to the window, if anything.
func outcome(a watchcache.Applied) string {
	out := ""
	if a.Evicted > 0 {
		out += fmt.Sprintf(", %d evicted", a.Evicted)
	}
	if a.Resized {
		out += ", resized"
	}
	return out
}

func refused(err error) string { return kind(err) + ": " + err.Error() }

func (s *script) moveTime(now string) error {
	if now == "" {
		return nil
	}
	d, err := time.ParseDuration(now)
	s.now = int64(d)
	return err
}

// rvWord is the first bare word as a number.
func (c *command) rvWord() (uint64, error) { return strconv.ParseUint(c.word(), 10, 64) }

func (s *script) progress(c *command) (string, error) {
	rv, err := c.rvWord()
	if err != nil {
		return "", err
	}
	if err := s.state.Progress(rv); err != nil {
		return refused(err), nil
	}
	return "ok", nil
}

func (s *script) compacted(c *command) (string, error) {
	rv, err := c.rvWord()
	s.state.Compacted(rv)
	return "ok", err
}

func (s *script) dispatched(c *command) (string, error) {
	word := c.word()
	p := s.state.Stats().Next
	if word != "all" {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return "", err
		}
		p = watchcache.Position(n)
	}
	s.state.Dispatched(p)
	return "ok", nil
}

func (s *script) trim(c *command) (string, error) {
	if err := s.moveTime(c.word()); err != nil {
		return "", err
	}
	return "ok" + outcome(s.state.Trim(s.now)), nil
}

// snapshotOf is the snapshot that a command's words name.
func (s *script) snapshotOf(c *command) (*watchcache.Snapshot, error) {
	switch name := c.word(); name {
	case "latest":
		return s.state.Latest(), nil
	case "at":
		rv, err := c.rvWord()
		if err != nil {
			return nil, err
		}
		return s.state.At(rv)
	default:
		if kept, ok := s.kept[name]; ok {
			return kept, nil
		}
		return nil, fmt.Errorf("no snapshot %q", name)
	}
}

// print writes what the command asks of the snapshot.
func (s *script) print(c *command, snapshot *watchcache.Snapshot) (string, error) {
	prefix, from, index := c.take("prefix"), c.take("from"), c.take("index")
	found := ranged(snapshot, prefix, from)
	if index != "" {
		name, value, _ := strings.Cut(index, ":")
		var ok bool
		if found, ok = rangedIndex(snapshot, name, value, prefix, from); !ok {
			return "no such index", nil
		}
	}
	return strings.TrimSpace(fmt.Sprintf("rv=%d next=%d: %s", snapshot.RV(), snapshot.Next(), found)), nil
}

func (s *script) latest(c *command) (string, error) { return s.print(c, s.state.Latest()) }

func (s *script) at(c *command) (string, error) {
	rv, err := c.rvWord()
	if err != nil {
		return "", err
	}
	snapshot, err := s.state.At(rv)
	if err != nil {
		return refused(err), nil
	}
	return s.print(c, snapshot)
}

func (s *script) keep(c *command) (string, error) {
	name := c.word()
	snapshot, err := s.snapshotOf(c)
	if err != nil {
		return "", err
	}
	for other, kept := range s.kept {
		if kept == snapshot {
			return "the same snapshot as " + other, nil
		}
	}
	s.kept[name] = snapshot
	return "ok", nil
}

func (s *script) show(c *command) (string, error) {
	snapshot, err := s.snapshotOf(c)
	if err != nil {
		return "", err
	}
	return s.print(c, snapshot)
}

func (s *script) get(c *command) (string, error) {
	e, rv := s.state.Get(c.word())
	if e == nil {
		return fmt.Sprintf("none at %d", rv), nil
	}
	return fmt.Sprintf("%s at %d", show(e), rv), nil
}

func (s *script) since(c *command) (string, error) {
	p, err := c.rvWord()
	if err != nil {
		return "", err
	}
	most := uint64(100)
	if text := c.take("max"); text != "" {
		if most, err = strconv.ParseUint(text, 10, 64); err != nil {
			return "", err
		}
	}
	events, through, err := since(s.state, watchcache.Position(p), int(most))
	if err != nil {
		return refused(err), nil
	}
	var out strings.Builder
	for _, e := range events {
		fmt.Fprintf(&out, "%s\n", showEvent(e))
	}
	fmt.Fprintf(&out, "through %d", through)
	return out.String(), nil
}

func (s *script) after(c *command) (string, error) {
	rv, err := c.rvWord()
	if err != nil {
		return "", err
	}
	p, err := s.state.PositionAfter(rv)
	if err != nil {
		return refused(err), nil
	}
	return fmt.Sprintf("position %d", p), nil
}

func (s *script) stats(*command) (string, error) {
	st := s.state.Stats()
	return fmt.Sprintf("rv=%d oldest-rv=%d objects=%d object-bytes=%d events=%d bytes=%d capacity=%d positions=[%d,%d)",
		st.RV, st.OldestRV, st.Objects, st.ObjectBytes, st.WindowEvents, st.WindowBytes, st.WindowCapacity, st.Oldest, st.Next), nil
}
