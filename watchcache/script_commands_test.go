// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kube-watchcache/watchcache/internal/script"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// The commands of the scripts; testdata/README.md describes them.

func (s *scripted) new(c *script.Command) (string, error) {
	config := roomy
	var err error
	if history := c.Take("history"); history != "" {
		if config.History, err = time.ParseDuration(history); err != nil {
			return "", err
		}
	}
	if bytes, err := c.Number("bytes"); err != nil {
		return "", err
	} else if bytes > 0 {
		config.WindowBytes = int64(bytes)
	}
	atLeast, err := c.Number("min")
	config.MinEvents = int(atLeast)
	*s = *newScripted()
	s.state = watchcache.New(config)
	return "ok", err
}

// elements turns the remaining pairs, key=value or key=value@rv, to elements.
func elements(c *script.Command, rv uint64, size int64) ([]*watchcache.Element, error) {
	var all []*watchcache.Element
	for _, p := range c.Pairs {
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
	c.Pairs = nil
	return all, nil
}

func (s *scripted) replace(c *script.Command) (string, error) {
	rv, err := c.Number("rv")
	if err != nil {
		return "", err
	}
	size, err := c.Number("size")
	if err != nil {
		return "", err
	}
	all, err := elements(c, rv, int64(size))
	if err != nil {
		return "", err
	}
	if duplicates := s.state.Replace(all, rv); duplicates > 0 {
		return fmt.Sprintf("ok, %d duplicate", duplicates), nil
	}
	return "ok", nil
}

func (s *scripted) apply(c *script.Command) (string, error) {
	types := map[string]watchcache.EventType{
		"add": watchcache.Added, "modify": watchcache.Modified, "delete": watchcache.Deleted, "nonsense": 9,
	}
	what := c.Word()
	part := what == "part"
	if part {
		what = c.Word()
	}
	eventType, ok := types[what]
	if !ok {
		return "", fmt.Errorf("no change %q", what)
	}
	rv, err := c.Number("rv")
	if err != nil {
		return "", err
	}
	size, err := c.Number("size")
	if err != nil {
		return "", err
	}
	if err := s.moveTime(c.Take("now")); err != nil {
		return "", err
	}
	all, err := elements(c, rv, int64(size))
	if err != nil {
		return "", err
	}
	if len(all) != 1 {
		return "", fmt.Errorf("one element, not %d", len(all))
	}
	applied, err := s.state.Apply(watchcache.Change{Type: eventType, Element: all[0], RV: rv, Received: s.now, Whole: !part})
	if err != nil {
		return refused(err), nil
	}
	if applied.Event == nil {
		return "was applied before", nil
	}
	return showEvent(applied.Event) + outcome(applied), nil
}

// outcome writes the effect on the window, if any.
func outcome(a watchcache.Applied) string {
	out := ""
	if a.Evicted > 0 {
		out += fmt.Sprintf(", %d evicted", a.Evicted)
	}
	return out
}

func refused(err error) string { return kind(err) + ": " + err.Error() }

func (s *scripted) moveTime(now string) error {
	if now == "" {
		return nil
	}
	d, err := time.ParseDuration(now)
	s.now = int64(d)
	return err
}

func (s *scripted) progress(c *script.Command) (string, error) {
	rv, err := c.WordNumber()
	if err != nil {
		return "", err
	}
	if err := s.state.Progress(rv); err != nil {
		return refused(err), nil
	}
	return "ok", nil
}

func (s *scripted) compacted(c *script.Command) (string, error) {
	rv, err := c.WordNumber()
	s.state.Compacted(rv)
	return "ok", err
}

func (s *scripted) dispatched(c *script.Command) (string, error) {
	word := c.Word()
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

func (s *scripted) trim(c *script.Command) (string, error) {
	if err := s.moveTime(c.Word()); err != nil {
		return "", err
	}
	return "ok" + outcome(s.state.Trim(s.now)), nil
}

// snapshotOf is the snapshot that a command's words name.
func (s *scripted) snapshotOf(c *script.Command) (*watchcache.Snapshot, error) {
	switch name := c.Word(); name {
	case "latest":
		return s.state.Latest(), nil
	case "at":
		rv, err := c.WordNumber()
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

// print writes the part of the snapshot that the command asks for.
func (s *scripted) print(c *script.Command, snapshot *watchcache.Snapshot) (string, error) {
	prefix, from, index := c.Take("prefix"), c.Take("from"), c.Take("index")
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

func (s *scripted) latest(c *script.Command) (string, error) { return s.print(c, s.state.Latest()) }

func (s *scripted) at(c *script.Command) (string, error) {
	rv, err := c.WordNumber()
	if err != nil {
		return "", err
	}
	snapshot, err := s.state.At(rv)
	if err != nil {
		return refused(err), nil
	}
	return s.print(c, snapshot)
}

func (s *scripted) keep(c *script.Command) (string, error) {
	name := c.Word()
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

func (s *scripted) show(c *script.Command) (string, error) {
	snapshot, err := s.snapshotOf(c)
	if err != nil {
		return "", err
	}
	return s.print(c, snapshot)
}

func (s *scripted) get(c *script.Command) (string, error) {
	e, rv := s.state.Get(c.Word())
	if e == nil {
		return fmt.Sprintf("none at %d", rv), nil
	}
	return fmt.Sprintf("%s at %d", show(e), rv), nil
}

func (s *scripted) since(c *script.Command) (string, error) {
	p, err := c.WordNumber()
	if err != nil {
		return "", err
	}
	most := uint64(100)
	if text := c.Take("max"); text != "" {
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

func (s *scripted) after(c *script.Command) (string, error) {
	rv, err := c.WordNumber()
	if err != nil {
		return "", err
	}
	p, err := positionAfter(s.state, rv)
	if err != nil {
		return refused(err), nil
	}
	return fmt.Sprintf("position %d", p), nil
}

func (s *scripted) stats(*script.Command) (string, error) {
	st := s.state.Stats()
	return fmt.Sprintf("rv=%d oldest-rv=%d objects=%d object-bytes=%d events=%d bytes=%d capacity=%d positions=[%d,%d)",
		st.RV, st.OldestRV, st.Objects, st.ObjectBytes, st.WindowEvents, st.WindowBytes, st.WindowCapacity, st.Oldest, st.Next), nil
}
