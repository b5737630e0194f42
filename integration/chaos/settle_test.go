// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-watchcache/watchcache/integration/internal/judge"
)

// verdict is what a run came to.
type verdict struct {
	violations judge.Violations
	// How much was judged.
	changes, ops, reads, streams, events int
	// said is what watches were told at their ends, and how often.
	said map[string]int
	// figures are of the servers, before the load and after it.
	figures []string
}

// settle ends the load, waits until every watch has what it must have, and judges
// the run. No fault is under way.
func (r *run) settle(ctx context.Context, pictures string) (v verdict) {
	r.t.Helper()
	resume := sync.OnceFunc(r.clients.pauseWrites())
	defer resume()
	r.clients.hurry()
	r.await(ctx, "the last writes fail", func() error { return r.clients.touchAll(ctx) })
	upTo := r.recorded(ctx)
	v.violations = r.awaitWatchers(ctx, upTo)
	r.clients.cancel() // before writers may go on
	resume()
	r.clients.stop()
	// A write that nobody acknowledged may have been applied meanwhile.
	upTo = r.recorded(ctx)
	v.violations = append(v.violations, r.compareStates(ctx, upTo)...)
	r.judge(&v, upTo, pictures)
	return v
}

// awaitWatchers returns which watchers do not get what they must have.
func (r *run) awaitWatchers(ctx context.Context, upTo int64) judge.Violations {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return judge.Await(ctx, retryPause, func() judge.Violations { return r.late(upTo) })
}

func (r *run) late(upTo int64) (found judge.Violations) {
	for _, s := range r.servers {
		if !s.Alive() {
			s.Suspect = true
			found.Add(judge.Complete, "server %s has ended:\n%s", s.name, s.Log())
		}
	}
	var followers []judge.Follower
	for _, w := range r.clients.watchers {
		_, to := w.seen()
		followers = append(followers, judge.Follower{Name: w.name, Selection: w.selection, To: to})
	}
	r.history.Lock()
	defer r.history.Unlock()
	return append(found, judge.Incomplete(r.history.History, upTo, followers...)...)
}

// judge holds all that the clients saw to etcd's history.
func (r *run) judge(v *verdict, upTo int64, pictures string) {
	c := r.clients
	h := r.history.History // nobody else reads on by now, or is waited for by the lock
	r.history.Lock()
	defer r.history.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	v.said = map[string]int{}
	for _, w := range c.watchers {
		streams, _ := w.seen()
		events := 0
		for _, s := range streams {
			events += len(s.Events)
		}
		if events == 0 {
			v.violations.Add(judge.Complete, "watch %s of %v: no event in the whole run", w.name, w.selection)
		}
		v.streams, v.events = v.streams+len(streams), v.events+events
		v.violations = append(v.violations, judge.Streams(h, upTo, streams...)...)
		w.mu.Lock()
		for _, said := range w.mu.said {
			v.said[shortened(said)]++
		}
		w.mu.Unlock()
	}
	judge.Absent(h, c.mu.reads)
	v.violations = append(v.violations, c.mu.odd...)
	v.violations = append(v.violations, judge.Writes(h, c.mu.writes)...)
	v.violations = append(v.violations, judge.Reads(h, c.mu.writes, c.mu.reads)...)
	v.violations = append(v.violations, judge.Linearizable(h, r.began, c.mu.ops, decision, func(key string, write func(string) error) {
		path := filepath.Join(pictures, "linear-"+strings.ReplaceAll(key, "/", "-")+".html")
		if err := write(path); err != nil {
			v.violations.Add(judge.Linear, "%s: no picture: %v", key, err)
		}
	})...)
	v.changes, v.ops, v.reads = h.Changes(), len(c.mu.ops), len(c.mu.reads)
	if len(v.violations) > 0 {
		for _, s := range r.servers {
			s.Suspect = true
		}
	}
}

// compareStates lists everything from each server: at one version, at least at it, and
// whatever is the latest.
func (r *run) compareStates(ctx context.Context, at int64) (found judge.Violations) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r.history.Lock()
	want := r.history.StateAt(judge.Selection{}, at)
	r.history.Unlock()
	version := strconv.FormatInt(at, 10)
	for _, s := range r.servers {
		client := s.devices(r.t)
		for _, options := range []metav1.ListOptions{
			{ResourceVersion: version, ResourceVersionMatch: metav1.ResourceVersionMatchExact}, {ResourceVersion: version}, {},
		} {
			list, err := client.FleetV1().Devices("").List(ctx, options)
			switch {
			case err != nil:
				found.Add(judge.State, "server %s, %+v: %v", s.name, options, err)
			case !maps.Equal(judge.ItemsOf(list), want):
				found.Add(judge.State, "server %s, %+v: at %s it has %v, where etcd has %v", s.name, options, list.ResourceVersion, judge.ItemsOf(list), want)
			case judge.Version(list.ResourceVersion) < at:
				found.Add(judge.Fresh, "server %s, %+v: the answer is of %s, and etcd was at %d", s.name, options, list.ResourceVersion, at)
			}
		}
	}
	return found
}

// shortened makes lines that differ only in their numbers the same.
func shortened(line string) string {
	line = strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return '#'
		}
		return r
	}, strings.Join(strings.Fields(line), " "))
	for strings.Contains(line, "##") {
		line = strings.ReplaceAll(line, "##", "#")
	}
	if len(line) > 160 {
		line = line[:160] + fmt.Sprintf("... (%d bytes)", len(line))
	}
	return line
}
