// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"slices"
	"strings"
)

// State is in which state an operation found the cache and its watchers.
type State struct{ Cache, Watchers string }

// Coverage counts in which states the operations were tried. Coverage is not safe
// for concurrent use.
type Coverage struct {
	counts map[State]map[string]int
}

var (
	cacheStates   = []string{"not started", "healthy", "in trouble", "after trouble", "paused", "history lost", "not ready", "asleep", "stopped"}
	watcherStates = []string{"no watchers", "live", "parked", "live and parked"}
)

// possible reports whether there is such a state: watchers need a cache.
func (s State) possible() bool {
	switch s.Cache {
	case "not started", "asleep", "stopped":
		return s.Watchers == "no watchers"
	}
	return true
}

func (c *Coverage) reached(s State, o Operation) {
	if c.counts == nil {
		c.counts = map[State]map[string]int{}
	}
	if c.counts[s] == nil {
		c.counts[s] = map[string]int{}
	}
	kind := o.kind()
	if !slices.Contains(kinds, kind) {
		panic("simulation: coverage does not know operations of the kind " + kind)
	}
	c.counts[s][kind]++
}

// Report is how many pairs of a kind of operation and a state were reached, for
// each state how many operations and how many kinds of them, and the pairs that
// never were.
func (c *Coverage) Report() string {
	var b strings.Builder
	var never []string
	all, reached := 0, 0
	for _, cache := range cacheStates {
		for _, watchers := range watcherStates {
			s := State{cache, watchers}
			if !s.possible() {
				continue
			}
			sum, have := 0, 0
			var lacks []string
			for _, kind := range kinds {
				all++
				if n := c.counts[s][kind]; n > 0 {
					have++
					sum += n
				} else {
					lacks = append(lacks, kind)
				}
			}
			reached += have
			fmt.Fprintf(&b, "  %-14s %-16s %8d operations, %2d of %d kinds\n", cache, watchers, sum, have, len(kinds))
			if lacks != nil {
				never = append(never, fmt.Sprintf("  %s, %s: %s", cache, watchers, strings.Join(lacks, ", ")))
			}
		}
	}
	slices.Sort(never)
	return fmt.Sprintf("%d of %d pairs of operation and state were reached\n%snever reached:\n%s\n", reached, all, b.String(), strings.Join(never, "\n"))
}
