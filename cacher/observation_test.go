// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"
	utiltrace "k8s.io/utils/trace"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// A slow read is a step of the trace that the handlers of k8s.io/apiserver keep
// for each request, and log; without such a trace it is a line of its own at -v=2.
func TestSlowReadsAreLogged(t *testing.T) {
	for name, tc := range map[string]struct {
		waits   time.Duration
		handled bool
		lines   int
	}{
		"a slow request":      {600 * time.Millisecond, true, 1},
		"a quick request":     {300 * time.Millisecond, true, 0},
		"a slow direct read":  {600 * time.Millisecond, false, 1},
		"a quick direct read": {300 * time.Millisecond, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			meters, metric := metered(t)
			text := logged(t, func() {
				var verbose klog.Level
				require.NoError(t, verbose.Set("2"))
				inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("hidden/one", "app=hidden")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
					ctx := t.Context()
					request := utiltrace.New("List")
					if tc.handled {
						ctx = utiltrace.ContextWithTrace(ctx, request)
					}
					answer := store.Gate("version")
					opts := everything("")
					opts.Predicate = poddata.Predicate("app=hidden", "")
					done := make(chan error, 1)
					go func() { done <- c.GetList(ctx, "/pods/", opts, &example.PodList{}) }()
					elapse(tc.waits)
					answer()
					assert.NoError(t, <-done)
					n := metric(`read_duration_seconds{decision="consistent",verb="list"}`)
					assert.EqualValues(t, 1, n, "%v durations are counted", n)
					if tc.handled {
						request.LogIfLong(500 * time.Millisecond)
					}
				}, withLabels("app"), meters)
			})
			lines := linesAbout(text, "watchcache.List")
			require.Len(t, lines, tc.lines, text)
			for _, line := range lines {
				for _, want := range []string{"pods", "decision", "consistent", "l:app", "evaluated", "returned", "wait_seconds"} {
					assert.Contains(t, line, want)
				}
				assert.NotContains(t, line, "hidden", "the log tells a name or a value: %s", line)
			}
		})
	}
}

// A GET that waits for nothing is timed now and then, for that costs half as much
// as the GET. Each GET that may wait is timed, and each that the cache does not
// answer.
func TestWhichGetsAreTimed(t *testing.T) {
	meters, metric := metered(t)
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("default/one", "")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		get := func(n int, rv string) {
			for range n {
				require.NoError(t, c.Get(t.Context(), "/pods/default/one", storage.GetOptions{ResourceVersion: rv}, &example.Pod{}))
			}
		}
		const gets = 20_000
		get(gets, "0")
		require.EqualValues(t, gets, metric(`reads_total{decision="latest",verb="get"}`))
		timed := metric(`read_duration_seconds{decision="latest",verb="get"}`)
		require.Greater(t, timed, 100.0, "of %d GETs", gets)
		require.Less(t, timed, 1000.0, "of %d GETs", gets)

		get(100, "1")
		require.EqualValues(t, timed+100, metric(`read_duration_seconds{decision="latest",verb="get"}`))
		get(100, "")
		require.EqualValues(t, 100, metric(`read_duration_seconds{decision="consistent",verb="get"}`))
	}, meters)

	meters, metric = metered(t)
	synctest.Test(t, func(t *testing.T) {
		store := newStore(poddata.Pod("default/one", ""))
		open := store.Gate("watch")
		config := podConfig(store)
		meters(&config)
		c, err := cacher.New(config)
		require.NoError(t, err)
		for range 100 {
			require.NoError(t, c.Get(t.Context(), "/pods/default/one", storage.GetOptions{ResourceVersion: "0"}, &example.Pod{}))
		}
		require.EqualValues(t, 100, metric(`read_duration_seconds{decision="delegate",verb="get"}`))
		open()
		c.Stop()
	})
}
