// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// The commands of the scripts; testdata/README.md describes them.

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
