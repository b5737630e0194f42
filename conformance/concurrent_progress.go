// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

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

func progressWhileManyWrite(t *testing.T, f *fixture) {
	h := f.begin(t, f.raw)
	scope := selected{key: Prefix + "a", recursive: true, predicate: storage.Everything}
	var collectors []*collector
	var reading sync.WaitGroup
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	for i := range writers {
		c := &collector{observer: f.observe(t, f.raw, fmt.Sprintf("watch %d of what many write", i), scope.key, notifying(h.start))}
		collectors = append(collectors, c)
		reading.Go(func() { c.run(ctx) })
	}
	h.changes = f.writeUntil(t, collectors)
	last := f.create(t, f.raw, poddata.Pod(end.pod))
	h.changes = append(h.changes, event{kind: watch.Added, key: endKey, rv: rvOf(t, last), object: last})
	time.AfterFunc(f.patience, cancel)
	reading.Wait()
	for _, c := range collectors {
		var events []event
		for _, e := range c.events {
			events = append(events, seen(t, c.what, e))
		}
		notOvertaken(t, events)
		sameEvents(t, c.what, h.changes, withoutBookmarks(events))
	}
}

// writeUntil writes, at the same time, and asks for progress beside, until
// each watch has had enough bookmarks, or for some time.
func (f *fixture) writeUntil(t *testing.T, collectors []*collector) (events []event) {
	t.Helper()
	late := time.Now().Add(bookmarksPatience)
	enough := func() bool {
		for _, c := range collectors {
			if c.bookmarks.Load() < enoughBookmarks {
				return f.ctx.Err() != nil || time.Now().After(late)
			}
		}
		return true
	}
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
	for round := 0; !enough(); round++ {
		events = append(events, f.manyWrite(t, f.raw, fmt.Sprintf("a/%d-", round), 1)...)
	}
	close(stop)
	if err := asking.Wait(); err != nil {
		t.Fatal(err)
	}
	return events
}
