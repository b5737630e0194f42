// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// Replayers whose watchers are level go on one after the other, the longest waiting first,
// and one that ends meanwhile keeps nobody from it.
func TestReplayersGoOnInTurn(t *testing.T) {
	d, snapshot := listedFanout()
	large := poddata.Predicate(strings.Repeat("k!=v,", 5000)+"k!=v", "")
	level := func() *replayer {
		w := d.addWith(t, &watcher{result: make(chan watch.Event, 10)}, match.NewQuery("/pods/", true, large), snapshot.Next())
		require.False(t, d.registry.goLive(w, snapshot.Next()), "the dispatcher has room for the query")
		require.True(t, d.registry.wait(w.replayer), "the watcher is not level")
		return w.replayer
	}
	one, ended, two := level(), level(), level()
	require.Len(t, d.registry.level(), 3)
	_, err := d.State.Apply(watchcache.Change{Type: watchcache.Added, RV: 6, Element: &watchcache.Element{Key: "/pods/a/b", RV: 6}})
	require.NoError(t, err)
	require.True(t, d.advance())
	require.Empty(t, d.registry.level())
	require.True(t, one.turn.Load())
	require.False(t, two.turn.Load(), "two go on at once")

	ended.watcher.Stop()
	one.worked()
	require.False(t, ended.turn.Load())
	require.True(t, two.turn.Load())
	two.worked()
	require.False(t, d.registry.wait(one), "there is an event")
	require.False(t, d.registry.goLive(one.watcher, snapshot.Next()+1))
	require.True(t, d.registry.wait(one))
	one.watcher.Stop()
	two.watcher.Stop()
	require.Zero(t, d.registry.mu.waiting.Len(), "watches that have ended are kept until the next event")
}

// Replayers that wait behind one that is ahead of the dispatcher go on.
func TestReplayerBehindOneThatIsAhead(t *testing.T) {
	d, snapshot := listedFanout()
	large := match.NewQuery("/pods/", true, poddata.Predicate(strings.Repeat("k!=v,", 5000)+"k!=v", ""))
	add := func() *replayer {
		return d.addWith(t, &watcher{result: make(chan watch.Event, 10)}, large, snapshot.Next()).replayer
	}
	ahead, behind := add(), add()
	_, err := d.State.Apply(watchcache.Change{Type: watchcache.Added, RV: 6, Element: &watchcache.Element{Key: "/pods/a/b", RV: 6}})
	require.NoError(t, err)
	require.False(t, d.registry.goLive(ahead.watcher, snapshot.Next()+1))
	require.True(t, d.registry.wait(ahead))
	require.False(t, d.registry.goLive(behind.watcher, snapshot.Next()))
	require.True(t, d.registry.wait(behind))
	require.True(t, d.advance())
	require.True(t, behind.turn.Load())
	require.False(t, ahead.turn.Load())
}
