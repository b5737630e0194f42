// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// concurrentProgress is the clause about progress while many write.
var concurrentProgress = clause{
	name:  "ConcurrentProgress",
	rule:  "a progress bookmark at a resourceVersion comes after every event up to it, also while others write",
	needs: progress,
	races: true,
	run:   progressWhileManyWrite,
}

const (
	// enoughBookmarks is how many of each watch are looked at, and
	// bookmarksPatience for how long they are waited for.
	enoughBookmarks   = 20
	bookmarksPatience = 5 * time.Second
)

// collector takes what a watch brings, up to the history's end.
type collector struct {
	*observer
	events    []watch.Event
	bookmarks atomic.Int32
}

// run is a goroutine of the clause's, which awaits it. The goroutine ends with
// the history, the watch or ctx.
func (c *collector) run(ctx context.Context) {
	for {
		select {
		case e, ok := <-c.watch.ResultChan():
			if !ok {
				return
			}
			c.events = append(c.events, e)
			if e.Type == watch.Bookmark {
				c.bookmarks.Add(1)
			} else if key, err := Key(e.Object); err != nil || key == endKey {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// progressWhileManyWrite asks for progress only when all watches have begun. A
// cache has one watch; those of an etcd that share a stream with others may be
// told of progress that was made before they began.
func progressWhileManyWrite(t *testing.T, f *fixture) {
	h := f.begin(t, f.raw)
	var collectors []*collector
	for i := range writers {
		what := fmt.Sprintf("watch %d of what many write", i)
		collectors = append(collectors, &collector{observer: f.observe(t, f.raw, what, Prefix+"a", notifying(h.start))})
	}
	h.play(t, f, f.raw, step{pod: "a/first"})
	for _, c := range collectors {
		c.mustTell(t, h.changes)
	}
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	var reading sync.WaitGroup
	for _, c := range collectors {
		reading.Go(func() { c.run(ctx) })
	}
	h.changes = append(h.changes, f.writeUntil(t, collectors)...)
	last := f.create(t, f.raw, poddata.Pod(end.pod))
	h.changes = append(h.changes, event{kind: watch.Added, key: endKey, rv: rvOf(t, last), object: last})
	late := time.AfterFunc(f.patience, cancel)
	defer late.Stop()
	reading.Wait()
	for _, c := range collectors {
		var events []event
		for _, e := range c.events {
			events = append(events, seen(t, c.what, e))
		}
		notOvertaken(t, events)
		sameEvents(t, c.what, h.changes[1:], withoutBookmarks(events))
	}
}

// writeUntil writes, at the same time, and asks for progress beside, until
// each watch has had enough bookmarks, or for some time.
func (f *fixture) writeUntil(t *testing.T, collectors []*collector) (events []event) {
	t.Helper()
	stop := make(chan struct{})
	var asking errgroup.Group
	asking.Go(func() error {
		again := time.NewTicker(time.Millisecond)
		defer again.Stop()
		for {
			select {
			case <-stop:
				return nil
			case <-again.C:
			}
			if err := f.raw.RequestWatchProgress(f.ctx); err != nil {
				return fmt.Errorf("RequestWatchProgress fails: %w", err)
			}
		}
	})
	late := time.Now().Add(bookmarksPatience)
	enough := func() bool {
		few := slices.ContainsFunc(collectors, func(c *collector) bool { return c.bookmarks.Load() < enoughBookmarks })
		return !few || f.ctx.Err() != nil || time.Now().After(late)
	}
	for round := 0; !enough(); round++ {
		events = append(events, f.manyWrite(t, f.raw, fmt.Sprintf("a/%d-", round), 1)...)
	}
	close(stop)
	if err := asking.Wait(); err != nil {
		t.Fatal(err)
	}
	return events
}
