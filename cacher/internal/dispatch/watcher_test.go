// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// Every event that may reach a watcher in a state leads to the state that the table of state
// names. With -tags=invariants each transition also checks the watcher's fields.
func TestEveryEventInEveryState(t *testing.T) {
	names := [states]string{starting: "starting", live: "live", parked: "parked", ending: "ending", closed: "closed"}
	const never = states // the event never reaches a watcher in the state
	d, snapshot := listedFanout()
	level := snapshot.Next()
	add := func(predicate storage.SelectionPredicate) *watcher {
		return d.addWith(t, &watcher{result: make(chan watch.Event, 1), bookmarks: true}, match.NewQuery("/pods/", true, predicate), level)
	}
	plain := func() *watcher { return add(storage.Everything) }
	large := func() *watcher { return add(poddata.Predicate(strings.Repeat("k!=v,", 5000)+"k!=v", "")) }
	goLive := func(position watchcache.Position) func(*watcher, *replayer) {
		return func(w *watcher, _ *replayer) {
			assert.Equal(t, d.registry.goLive(w, position), w.is(live))
		}
	}
	for _, event := range []struct {
		name  string
		begin func() *watcher
		do    func(w *watcher, first *replayer)
		want  [states]state
	}{
		{"is level", plain, goLive(level), [states]state{starting: live, live: never, parked: live, ending: ending, closed: closed}},
		{"is level, without room", large, goLive(level), [states]state{starting: parked, live: never, parked: parked, ending: ending, closed: closed}},
		{"is behind", plain, goLive(level - 1), [states]state{starting: starting, live: never, parked: parked, ending: ending, closed: closed}},
		{"has no room in its channel", plain, func(w *watcher, _ *replayer) {
			assert.Equal(t, !w.is(closed), d.registry.park(d.newReplayer(w, level), 0))
		}, [states]state{starting: never, live: parked, parked: never, ending: never, closed: closed}},
		{"fails", plain, func(w *watcher, first *replayer) {
			p := w.replayer
			if p == nil {
				p = first // which a look of the supervisor may still hold
			}
			d.registry.expel(p, metrics.EndExpired, nil)
		}, [states]state{starting: ending, live: live, parked: ending, ending: ending, closed: closed}},
		{"is level when storage fails", plain, func(w *watcher, _ *replayer) {
			wasLive := w.is(live)
			assert.Equal(t, wasLive, d.registry.fail(d.newReplayer(w, level), nil))
		}, [states]state{starting: starting, live: ending, parked: ending, ending: ending, closed: closed}},
		{"stops", plain, func(w *watcher, _ *replayer) { w.Stop() }, [states]state{closed, closed, closed, closed, closed}},
	} {
		for from, want := range event.want {
			if want == never {
				continue
			}
			t.Run(fmt.Sprintf("%s %s", names[from], event.name), func(t *testing.T) {
				w := event.begin()
				first := w.replayer
				switch state(from) {
				case live:
					require.True(t, d.registry.goLive(w, level))
				case parked:
					if d.registry.goLive(w, level) {
						require.True(t, d.registry.park(d.newReplayer(w, level), 0))
					}
				case ending:
					d.registry.expel(first, metrics.EndStalled, nil)
				case closed:
					w.Stop()
				}
				require.Equal(t, names[from], names[w.state.Load()])
				p := w.replayer
				event.do(w, first)
				require.Equal(t, names[want], names[w.state.Load()])
				if p == nil {
					p = cmp.Or(w.replayer, first)
				}
				assert.Equal(t, want == ending || want == closed && from != int(live), isClosed(p.stop), "stop")
				assert.Equal(t, want == closed && from != int(live), isClosed(p.gone), "gone")
				assert.Equal(t, want == closed && from == int(live), isClosed(w.result), "a live watcher has no replayer to close its channel")
				var count [states]int
				if want != closed {
					count[want] = 1
				}
				counts := d.registry.counts()
				counts[closed] = 0
				assert.Equal(t, count, counts, "the watchers by state")
				w.Stop()
				assert.Empty(t, d.registry.mu.all)
			})
		}
	}
}

func isClosed[E any](c <-chan E) bool {
	select {
	case _, open := <-c:
		return !open
	default:
		return false
	}
}
