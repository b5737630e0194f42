// SPDX-License-Identifier: Apache-2.0

package fanout

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kube-watchcache/watchcache/cacher/internal/timeline"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// Of two new watchers that come further, the window waits for the one that is
// further behind.
func TestWindowWaitsForTheSlowest(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1_000_000, 0))
	d := idleDispatcher(clock)
	d.state = watchcache.New(watchcache.Config{History: time.Second, WindowBytes: 1 << 40, HeldBytes: 1 << 40})
	d.state.Replace(nil, 5)
	begin := d.state.Stats().Next
	for i := range uint64(6) {
		_, err := d.state.Apply(watchcache.Change{
			Type: watchcache.Added, RV: 6 + i, Whole: true,
			Element: &watchcache.Element{Key: "/pods/a/" + strconv.FormatUint(i, 10), RV: 6 + i},
		})
		require.NoError(t, err)
	}
	d.state.Dispatched(begin + 6)

	s := &supervisor{state: d.state, registry: d.registry, time: timeline.New(clock)}
	for _, at := range []watchcache.Position{begin + 4, begin + 2, begin + 5} {
		r := (&replays{state: d.state, registry: d.registry, supervisor: s}).newReplayer(&watcher{registry: d.registry}, make(chan struct{}), at)
		r.begin(nil)
		s.add(r)
	}
	s.look()
	d.state.Trim(int64(time.Hour))
	require.Equal(t, begin+2, d.state.Stats().Oldest)
}
