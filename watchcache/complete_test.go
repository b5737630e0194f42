// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// Regression 134: a change at a resourceVersion that was taken for complete is in the
// next snapshot, also when the source has begun to tell where resourceVersions end.
func TestChangeAtAShownResourceVersion(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("a", 1, "1")}, 1)
	apply(t, s, modified("a", 5, "2"))
	require.Equal(t, "a=2@5", contents(s.Latest()))
	s.PinSnapshot(at(t, s, 1))
	s.PinSnapshot(s.Latest())
	require.True(t, applyPart(t, s, added("b", 5, "1")).Event.Late)
	require.Equal(t, "a=2@5 b=1@5", contents(s.Latest()))
	require.Equal(t, "a=2@5 b=1@5", contents(at(t, s, 5)))
	require.False(t, applyPart(t, s, modified("a", 6, "3")).Event.Late)
	require.Equal(t, "a=2@5 b=1@5", contents(at(t, s, 5)), "a page of the version without the change was pinned")
	require.True(t, s.HasSnapshot(1), "another version was forgotten")
}

// Readers of a source whose transactions write two keys at a time never see
// one of them without the other, in no kind of snapshot.
func TestTransactionsAreWhole(t *testing.T) {
	s := watchcache.New(watchcache.Config{MinEvents: 200, WindowBytes: 1 << 40, Indexes: indexes})
	s.Replace([]*watchcache.Element{element("a", 1, "1"), element("b", 1, "1")}, 1)
	const transactions = 3000
	stop := make(chan struct{})
	var readers sync.WaitGroup
	check := func(snapshot *watchcache.Snapshot) {
		a, b := snapshot.Get("a"), snapshot.Get("b")
		if a.RV != b.RV || a.RV > snapshot.RV() || snapshot.Len() != 2 {
			assert.Fail(t, "a reader sees a part of a transaction", "at %d: %s, %s", snapshot.RV(), show(a), show(b))
		}
		if got := contents(snapshot); got != show(a)+" "+show(b) {
			assert.Fail(t, "a reader sees a part of a transaction", "at %d: %s", snapshot.RV(), got)
		}
	}
	for range 3 {
		readers.Go(func() {
			for last := uint64(0); ; {
				latest := s.Latest()
				check(latest)
				if latest.RV() < last {
					assert.Fail(t, "a reader goes back", "at %d after %d", latest.RV(), last)
				}
				last = latest.RV()
				if earlier, err := s.At(last - min(last-1, 7)); err == nil {
					check(earlier)
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for i := range uint64(transactions) {
		rv := 2 + 2*i
		applied := applyPart(t, s, modified("a", rv, "1"), modified("b", rv, "1"))
		if i%3 == 0 {
			require.NoError(t, s.Progress(rv))
		}
		s.Dispatched(applied.Event.Position)
	}
	close(stop)
	readers.Wait()
}

// Unfinished names the version of which more changes may come.
func TestUnfinished(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("a", 1, "1")}, 1)
	require.Zero(t, s.Unfinished())
	applyPart(t, s, modified("a", 5, "2"))
	require.Equal(t, uint64(5), s.Unfinished())
	require.NoError(t, s.Progress(5))
	require.Zero(t, s.Unfinished())
}
