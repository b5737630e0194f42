// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"

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
			`The watch cache fell asleep after its idle timeout. The next request wakes it idleTimeout="1m0s"`
		expectLines(t, text,
			`A request wakes the watch cache user="alice"`, ready, asleep,
			`A request wakes the watch cache user=""`, ready, asleep,
			`A request wakes the watch cache user=""`, ready, asleep,
			`A request wakes the watch cache user=""`, ready, `The watch cache stopped`)
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
		`The watch cache relisted storage cause="expired" objects=1 resourceVersion=2`,
		`The watch cache is ready after="1\d\.?\d*s" cause="restored" objects=1 resourceVersion=2`,
		`The watch cache stopped`)
}

// A slow read is a line at -v=2, without names and values.
func TestSlowReadsAreLogged(t *testing.T) {
	for waits, lines := range map[time.Duration]int{600 * time.Millisecond: 1, 300 * time.Millisecond: 0} {
		meters, metric := metered(t)
		text := loggedAt(t, 2, func() {
			inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("hidden/one", "app=hidden")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				time.AfterFunc(waits, store.Gate("version"))
				opts := everything("")
				opts.Predicate = poddata.Predicate("app=hidden", "")
				assert.NoError(t, c.GetList(t.Context(), "/pods/", opts, &example.PodList{}))
				assert.EqualValues(t, 1, metric(`read_duration_seconds{decision="consistent",verb="list"}`), "the durations that are counted")
			}, withLabels("app"), meters)
		})
		got := linesAbout(text, "A slow read")
		require.Len(t, got, lines, "after %v: %s", waits, text)
		for _, line := range got {
			assert.Regexp(t, `resource="pods" list=true took="6\d+ms" decision="consistent" index="l:app" evaluated=1 returned=1 waited="6\d+ms"`, line)
			assert.NotContains(t, line, "hidden", "the log tells a name or a value: %s", line)
		}
	}
}

// Each GET and LIST of a traced request is an event of its span, without names and values.
func TestReadsAreTraced(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("test")
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("hidden/one", "app=hidden")) }, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) {
		ctx, span := tracer.Start(t.Context(), "request")
		require.NoError(t, c.Get(ctx, "/pods/hidden/one", storage.GetOptions{ResourceVersion: "0"}, &example.Pod{}))
		require.True(t, storage.IsNotFound(c.Get(ctx, "/pods/hidden/two", storage.GetOptions{}, &example.Pod{})))
		opts := everything("0")
		opts.Predicate = poddata.Predicate("app=hidden", "")
		require.NoError(t, c.GetList(ctx, "/pods/", opts, &example.PodList{}))
		span.End()
	}, withLabels("app"))
	var got []string
	for _, event := range spans.GetSpans()[0].Events {
		set := attribute.NewSet(event.Attributes...)
		got = append(got, event.Name+": "+set.Encoded(attribute.DefaultEncoder()))
	}
	require.Equal(t, []string{
		"Read from the watch cache: decision=latest,evaluated=1,index=,list=false,returned=1,took=0s,waited=0s",
		"Read from the watch cache: decision=consistent,error=NotFound,evaluated=1,index=,list=false,returned=0,took=0s,waited=0s",
		"Read from the watch cache: decision=latest,evaluated=1,index=l:app,list=true,returned=1,took=0s,waited=0s",
	}, got)
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

// The errors that a cache remembers are bounded in number and in length (regression 181).
func TestRememberedErrors(t *testing.T) {
	var texts []string
	for i := range 100 {
		texts = append(texts, strconv.Itoa(i)+strings.Repeat("x", 100_000))
	}
	all := cacher.RememberedErrors(texts...)
	size := 0
	for _, e := range all {
		size += len(e.Message)
	}
	assert.Less(t, size, 32<<10)
	assert.True(t, strings.HasPrefix(all[0].Message, "99x"), "the latest is first")
}
