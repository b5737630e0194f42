// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"testing"

	"github.com/kube-watchcache/watchcache/internal/script"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// TestScripts runs testdata/*.txt, the specification of the package by
// example. testdata/README.md describes the commands.
func TestScripts(t *testing.T) {
	script.Test(t, "testdata/*.txt", func(_ *testing.T, play script.Play) {
		s := newScripted()
		play(s.run)
	})
}

// scripted is what a script's commands act on.
type scripted struct {
	state *watchcache.State
	kept  map[string]*watchcache.Snapshot
	now   int64
}

func newScripted() *scripted {
	return &scripted{state: watchcache.New(roomy), kept: map[string]*watchcache.Snapshot{}}
}

func (s *scripted) run(c *script.Command) (string, error) {
	commands := map[string]func(*script.Command) (string, error){
		"new": s.new, "replace": s.replace, "apply": s.apply, "progress": s.progress, "compacted": s.compacted,
		"dispatched": s.dispatched, "trim": s.trim, "latest": s.latest, "at": s.at, "keep": s.keep, "show": s.show,
		"get": s.get, "since": s.since, "after": s.after, "stats": s.stats,
	}
	run, ok := commands[c.Name]
	if !ok {
		return "", fmt.Errorf("no command %q", c.Name)
	}
	return run(c)
}
