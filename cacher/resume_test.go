// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// Regression 79: a watch that is hundreds of thousands of revisions behind
// when it could be resumed is not, for the storage would have to read all of
// them; the resource is listed again. One that is less behind is resumed, as is
// one whose storage does not tell.
func TestResumeGivesUpFarBehind(t *testing.T) {
	for name, tc := range map[string]struct {
		outage    time.Duration
		revisions int
		untold    bool // the storage does not tell its version at first
		relisted  bool
	}{
		"far behind":                        {time.Minute, 100_001, false, true},
		"less behind":                       {time.Minute, 99_000, false, false},
		"far behind after a moment":         {time.Second, 100_001, false, false},
		"the storage does not tell how far": {time.Minute, 100_001, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				w := watchPods(t, c, "/pods/", "2")
				before := c.Status().OldestResourceVersion
				store.Fail("watch", noLeader)
				if tc.untold {
					store.Fail("version", errors.New("not now"))
				}
				store.BreakWatches(nil)
				elapse(tc.outage)
				for range tc.revisions {
					store.Touch()
				}
				put(store, poddata.Pod("a/two"))
				store.Fail("watch", nil)
				elapse(10 * time.Second)
				assert.Equal(t, tc.relisted, c.Status().OldestResourceVersion != before, "the storage was listed again")
				if tc.relisted {
					expectList(t, c, "/pods/", "0", "a/one a/two@100004")
					w.expectClosed()
					return
				}
				got := w.next()
				assert.Equal(t, "ADDED a/two@", got[:12], "the watch got %q", got)
			}, func(config *cacher.Config) { config.ConsistencyCheckInterval = -1 })
		})
	}
}
