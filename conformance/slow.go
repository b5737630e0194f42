// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher"
)

// slowClauses are about watchers that do not read.
var slowClauses = []clause{
	{
		name: "Parking",
		rule: "a watcher that does not read holds nobody up, and when it reads on it is told everything, once and in order",
		run:  parking,
	},
	{
		name: "ParkedTooLong",
		rule: "a watcher that reads on when the cache's window has left it behind is told some of what came first, and then 410 Expired: never a gap",
		run:  parkedTooLong,
	},
}

// parkedEvents is more than a watcher's channel holds.
const parkedEvents = 10 * cacher.DefaultWatchBuffer

func parking(t *testing.T, f *fixture) {
	c := f.cache(t)
	h := f.begin(t, f.raw)
	slow := f.observe(t, c, "the watch that was not read from", Prefix, everything.since(h.start))
	var others []*observer
	for i := range 5 {
		others = append(others, f.observe(t, c, fmt.Sprintf("watch %d beside one that is not read from", i), Prefix, everything.since(h.start)))
	}
	for i := range parkedEvents {
		h.play(t, f, f.raw, step{pod: fmt.Sprintf("a/%d", i%10)})
		for _, o := range others {
			o.mustTell(t, h.changes[i:])
		}
	}
	f.eventually(t, "the watcher that does not read is parked", func() bool {
		watchers := c.cacher.Status().Watchers
		return len(watchers) > 0 && watchers[0].Parked
	})
	slow.mustTell(t, h.changes)
	h.play(t, f, f.raw, end)
	slow.mustTell(t, h.changes[parkedEvents:])
}

func parkedTooLong(t *testing.T, f *fixture) {
	c := f.cache(t, tinyWindow)
	h := f.begin(t, f.raw)
	slow := f.observe(t, c, "a watch that was not read from for too long", Prefix, everything.since(h.start))
	// Its channel takes what comes first.
	f.eventually(t, "a watcher with nothing to catch up with is fed as events come", func() bool {
		watchers := c.cacher.Status().Watchers
		return len(watchers) > 0 && !watchers[0].Parked
	})
	for i := range parkedEvents {
		h.play(t, f, f.raw, step{pod: fmt.Sprintf("a/%d", i%5)})
	}
	f.letGo(t, c, h, h.last())
	var got []event
	for len(got) < len(h.changes) {
		e := slow.next(t, "the events, in part, and then ERROR 410")
		if e.kind == watch.Error {
			mustExpire(t, slow.what, e.err)
			return
		}
		if got = append(got, e); !e.same(h.changes[len(got)-1]) {
			sameEvents(t, slow.what, h.changes, got)
		}
	}
	t.Errorf("%s was told everything, though the cache has let go of what is before %d", slow.what, h.last())
}
