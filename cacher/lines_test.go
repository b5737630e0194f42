// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"
	utiltrace "k8s.io/utils/trace"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// loggedAt is logged at a level.
func loggedAt(t *testing.T, level int, f func()) string {
	t.Helper()
	return logged(t, func() {
		var verbose klog.Level
		require.NoError(t, verbose.Set(strconv.Itoa(level)))
		f()
	})
}

// ofCache matches what follows the head of a line that a cache of pods logs.
var ofCache = regexp.MustCompile(`\] "(.*)" logger="watchcache" resource="pods" ?(.*)`)

// linesOfCache returns the lines about a cache of pods, without their heads.
func linesOfCache(text string) (lines []string) {
	for _, line := range linesAbout(text, `logger="watchcache"`) {
		if m := ofCache.FindStringSubmatch(line); m != nil && line[0] == 'I' { // not the errors
			lines = append(lines, strings.TrimSpace(m[1]+" "+m[2]))
		}
	}
	return lines
}

// expectLines compares lines with regular expressions, one each, and requires that
// docs/runbook.md has the message of each. No line may tell what is secret.
func expectLines(t *testing.T, text string, want ...string) {
	t.Helper()
	assert.NotContains(t, text, "hidden", "the log has the name of an object, a label or a selector")
	page, err := os.ReadFile("../docs/runbook.md")
	require.NoError(t, err)
	got := linesOfCache(text)
	require.Len(t, got, len(want), text)
	for i, line := range got {
		assert.Regexp(t, "^"+want[i]+"$", line, "line %d", i)
		assert.Contains(t, string(page), messageOf(line), "docs/runbook.md does not have the message")
	}
}

// messageOf returns a line up to its first key.
func messageOf(line string) string {
	return line[:regexp.MustCompile(` \w+=`).FindStringIndex(line + " x=")[0]]
}

// The life of a cache is a line for each thing that happens, at -v=2 and not below.
func TestLifeOfACacheIsLogged(t *testing.T) {
	for level := range 3 {
		text := loggedAt(t, level, func() {
			synctest.Test(t, func(t *testing.T) {
				store := newStore(poddata.Pod("hidden/one", "app=hidden"), poddata.Pod("hidden/two"))
				c := newCache(t, store, func(c *cacher.Config) { c.LazyStart, c.IdleTimeout = true, time.Minute })
				alice := cacher.WithClient(t.Context(), status.Client{User: "alice", UserAgent: "kubectl", Address: "10.0.0.1:5"})
				for range 3 {
					assert.NoError(t, c.Get(alice, "/pods/hidden/one", storage.GetOptions{}, &example.Pod{}))
				}
				elapse(3 * time.Minute)
				<-goList(t.Context(), c, "").done
				elapse(3 * time.Minute)
				watchPods(t, c, "/pods/", "").Stop()
				elapse(3 * time.Minute)
				assert.NoError(t, c.Wait(t.Context()))
				c.Stop()
				c.Stop()
			})
		})
		if level < 2 {
			expectLines(t, text)
			continue
		}
		const ready, asleep = `The watch cache is ready after="\S+" cause="start" objects=2 resourceVersion=3`,
			`The watch cache fell asleep: no request has used it. The next one wakes it idleTimeout="1m0s"`
		expectLines(t, text,
			`A request wakes the watch cache verb="get" user="alice"`, ready, asleep,
			`A request wakes the watch cache verb="list" user=""`, ready, asleep,
			`A request wakes the watch cache verb="watch" user=""`, ready, asleep,
			`A request wakes the watch cache verb="wait" user=""`, ready, `The watch cache was stopped`)
	}
}

// A list of storage that was not the first is a line with its cause.
func TestRelistsAreLogged(t *testing.T) {
	text := loggedAt(t, 2, func() {
		inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("hidden/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
			elapse(time.Second)
			store.BreakWatches(apierrors.NewResourceExpired("compacted"))
			elapse(time.Minute)
			openWatch := store.Gate("watch")
			for i := range 3 {
				put(store, poddata.Pod(fmt.Sprintf("hidden/%d", i)))
			}
			elapse(time.Second)
			store.Restore(2)
			<-goList(t.Context(), c, "").done
			elapse(10 * time.Second)
			openWatch()
			elapse(time.Minute)
		})
	})
	expectLines(t, text,
		`The watch cache is ready after="0s" cause="start" objects=1 resourceVersion=2`,
		`The watch cache has listed its storage again cause="expired" objects=1 resourceVersion=2`,
		`The watch cache is ready after="1\d\.?\d*s" cause="restored" objects=1 resourceVersion=2`,
		`The watch cache was stopped`)
}

// bob opens a watch whose client reads nothing.
func bob(t *testing.T, c *cacher.Cacher, rv string, change ...func(*storage.ListOptions)) *podWatch {
	t.Helper()
	ctx, cancel := context.WithCancel(cacher.WithClient(t.Context(), status.Client{User: "bob", UserAgent: "curl/8 " + strings.Repeat("x", 1000), Address: "10.0.0.2:7"}))
	opts := storage.ListOptions{ResourceVersion: rv, Predicate: poddata.Predicate("app!=hidden", ""), Recursive: true}
	for _, change := range change {
		change(&opts)
	}
	w, err := c.Watch(ctx, "/pods/", opts)
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	synctest.Wait()
	return &podWatch{Interface: w, t: t, cancel: cancel}
}

const ofBob = ` user="bob" userAgent="curl/8 x{249}\.\.\." address="10.0.0.2:7" watch=1`

// loggedEnd is what happens to a watch of bob's.
type loggedEnd struct {
	do     func(t *testing.T, store *memstore.Store, c *cacher.Cacher)
	config func(*cacher.Config)
	lines  []string // at level 2
	later  []string // beyond that, at level 4
}

var loggedEnds = map[string]loggedEnd{
	"parked": {
		do: func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
			w := bob(t, c, "101")
			burst(store, 50)
			elapse(2 * time.Second)
			for range 50 {
				w.next()
			}
			w.cancel()
			synctest.Wait()
		},
		later: []string{
			`A watch is parked: its client is slow.*` + ofBob + ` behind=\d+ behindFor="\S+" queued=16 delivered=16 age="0s"`,
			`A watch has ended: its client has stopped it` + ofBob + ` behind=0 .* delivered=50 .* reason="stopped"`,
		},
	},
	"expired": {
		do: func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
			bob(t, c, "101")
			burst(store, 1000)
			elapse(5 * time.Second)
		},
		config: func(c *cacher.Config) { c.WindowBytes = 1 },
		lines:  []string{`A watch has ended with 410: its client was slower.*` + ofBob + ` behind=9\d\d behindFor="\S+" queued=16 .* reason="expired"`},
		later:  []string{`A watch is parked.*`},
	},
	"stalled": {
		do: func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) {
			bob(t, c, "0", streaming)
			elapse(2 * time.Minute)
		},
		lines: []string{`A watch has ended with 410: its client took none.*` + ofBob + ` behind=0 .* queued=16 delivered=16 age="1m\ds" reason="stalled"`},
	},
	"heavy": {
		do: func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
			bob(t, c, "0")
			for i := range 100 {
				put(store, poddata.Pod(fmt.Sprintf("a/pod-%02d", i)))
			}
			elapse(5 * time.Second)
		},
		config: func(c *cacher.Config) { c.BoundInitialEvents(0, 1) },
		lines:  []string{`A watch has ended with 410: the initial events of slow clients.*` + ofBob + ` behind=100 .* reason="heavy"`},
	},
	"relist": {
		do: func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
			bob(t, c, "101")
			store.BreakWatches(apierrors.NewResourceExpired("compacted"))
			elapse(time.Minute)
		},
		lines: []string{`The watch cache has listed.*`, `A watch has ended: the watch cache has listed.*` + ofBob + ` .* reason="relist"`},
	},
	"failed": {
		do: func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
			bob(t, c, "101")
			release := store.Corrupt(undecodable)
			put(store, poddata.Pod("hidden/corrupt"))
			elapse(2 * time.Second)
			release()
			elapse(time.Minute)
		},
		lines: []string{`A watch has ended with an error: the storage could not deliver.*` + ofBob + ` .* reason="failed"`, `The watch cache has listed.*`},
	},
	"shutdown": {
		do:    func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) { bob(t, c, "101"); c.Stop() },
		later: []string{`A watch has ended: the watch cache was stopped or fell asleep` + ofBob + ` .* reason="shutdown"`},
	},
}

// A watch that is parked or that ends has one line, with its client and with how
// far behind the watch was; a watch that ended as watches do only at a level
// that shows everything.
func TestWatchesAreLogged(t *testing.T) {
	for name, test := range loggedEnds {
		t.Run(name, func(t *testing.T) {
			for level, want := range map[int][]string{1: nil, 2: test.lines, 4: slices.Concat(test.lines, test.later)} {
				text := loggedAt(t, level, func() {
					if test.config == nil {
						test.config = unchecked
					}
					inBubble(t, manyPods, test.do, test.config)
				})
				got := slices.DeleteFunc(linesOfCache(text), func(line string) bool {
					return slices.Contains([]string{"The watch cache is ready", "The watch cache was stopped", "A slow read"}, messageOf(line))
				})
				require.Len(t, got, len(want), "at level %d:\n%s", level, text)
				if level < 4 { // beyond that client-go's Reflector tells its own
					assert.NotContains(t, text, "hidden", "the log tells a selector")
				}
				for _, pattern := range want {
					matches := regexp.MustCompile("(?m)^"+pattern+"$").FindAllString(strings.Join(got, "\n"), -1)
					assert.Len(t, matches, 1, "lines at level %d that match %s:\n%s", level, pattern, strings.Join(got, "\n"))
				}
			}
		})
	}
}

// However many watches end, the log gets a few lines and a number, when their minute is
// over or when the cache stops.
func TestLinesOfManyWatchesAreFew(t *testing.T) {
	text := loggedAt(t, 4, func() {
		inBubble(t, manyPods, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
			for range 1000 {
				watchPods(t, c, "/pods/", "101")
			}
			synctest.Wait()
			store.BreakWatches(apierrors.NewResourceExpired("compacted"))
			elapse(2 * time.Minute)
			for range 20 {
				watchPods(t, c, "/pods/", "101")
			}
			synctest.Wait()
		}, func(c *cacher.Config) { c.EventsHistoryWindow = time.Hour })
	})
	assert.Len(t, linesAbout(text, `reason="relist"`), 6, "five lines, and one with the number of the others")
	assert.Contains(t, text, `reason="relist" suppressed=995 within="1m`)
	assert.Len(t, linesAbout(text, `reason="shutdown"`), 6)
	assert.Len(t, linesAbout(text, "suppressed=15 "), 1)
}

// A slow read is a step of the trace that the handlers of k8s.io/apiserver keep
// for each request, and log; without such a trace it is a line of its own at -v=2.
func TestSlowReadsAreLogged(t *testing.T) {
	for waits, lines := range map[time.Duration]int{600 * time.Millisecond: 1, 300 * time.Millisecond: 0} {
		for _, handled := range []bool{true, false} {
			meters, metric := metered(t)
			text := loggedAt(t, 2, func() {
				inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("hidden/one", "app=hidden")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
					ctx := t.Context()
					request := utiltrace.New("List")
					if handled {
						ctx = utiltrace.ContextWithTrace(ctx, request)
					}
					time.AfterFunc(waits, store.Gate("version"))
					opts := everything("")
					opts.Predicate = poddata.Predicate("app=hidden", "")
					assert.NoError(t, c.GetList(ctx, "/pods/", opts, &example.PodList{}))
					assert.EqualValues(t, 1, metric(`read_duration_seconds{decision="consistent",verb="list"}`), "the durations that are counted")
					if handled {
						request.LogIfLong(500 * time.Millisecond)
					}
				}, withLabels("app"), meters)
			})
			got := linesAbout(text, "watchcache.List")
			require.Len(t, got, lines, "after %v, handled %v: %s", waits, handled, text)
			for _, line := range got {
				for _, want := range []string{"pods", "decision", "consistent", "l:app", "evaluated", "returned", "wait_seconds"} {
					assert.Contains(t, line, want)
				}
				assert.NotContains(t, line, "hidden", "the log tells a name or a value: %s", line)
			}
		}
	}
}

// A GET that waits for nothing is timed now and then, for that costs half as much
// as the GET. Each GET that may wait is timed.
func TestWhichGetsAreTimed(t *testing.T) {
	meters, metric := metered(t)
	inBubble(t, onePod, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		get := func(n int, rv string) {
			for range n {
				require.NoError(t, c.Get(t.Context(), "/pods/a/one", storage.GetOptions{ResourceVersion: rv}, &example.Pod{}))
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
}
