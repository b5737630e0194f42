// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/apis/example"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/race"
)

const (
	levelRounds = 12
	levelPods   = 40
	levelBytes  = 10_000 // of a pod
	lastPod     = "the-last-pod"
)

// usage is what a process holds.
type usage struct {
	heap                    int64
	goroutines, descriptors int
}

func usageNow(t *testing.T) usage {
	t.Helper()
	for range 3 { // finalizers and pools
		runtime.GC()
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	descriptors, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return usage{int64(memory.HeapAlloc), runtime.NumGoroutine(), len(descriptors)}
}

// TestHeapIsLevel: caches that sleep and wake up leave nothing in the server that they belong
// to, and servers that end nothing in the process, whatever their clients have asked for.
func TestHeapIsLevel(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("this system does not list the descriptors of a process: ", err)
	}
	if race.Enabled {
		t.Skip("measures the heap: make verify runs it without the race detector")
	}
	t.Run("sleeps", func(t *testing.T) {
		s := serveTwins(t, pods(t), auditinternal.LevelNone, cacher.Configure(func(c *cacher.Config) { c.IdleTimeout = time.Second }))
		const stored = (levelRounds - levelRounds/3) * 2 * levelPods * levelBytes // by the etcd in this process, in the log of its raft
		level(t, stored, func(round int) {
			s.everyClient(t, round)
			require.Eventually(t, func() bool { return s.cache.Status().Asleep }, time.Minute, 20*time.Millisecond, "the cache stays awake")
		})
	})
	t.Run("servers", func(t *testing.T) {
		level(t, 0, func(round int) {
			t.Run(fmt.Sprint(round), func(t *testing.T) { serveTwins(t, pods(t), auditinternal.LevelNone).everyClient(t, round) })
		})
	})
}

// level runs rounds, and compares what the process holds after a third of them and after all.
// The heap may grow by the size of what the rounds store.
func level(t *testing.T, stored int64, run func(round int)) {
	var before usage
	for round := range levelRounds {
		if round == levelRounds/3 {
			before = usageNow(t)
		}
		run(round)
	}
	var after usage
	assert.Eventually(t, func() bool { // connections end on goroutines of their own
		after = usageNow(t)
		return after.goroutines <= before.goroutines+5 && after.descriptors <= before.descriptors+5 && after.heap <= before.heap+stored+4<<20
	}, time.Minute, 100*time.Millisecond)
	t.Logf("after %d rounds %+v, after %d %+v", levelRounds/3, before, levelRounds, after)
}

// everyClient lists and watches in every form while objects change.
func (s *twins) everyClient(t *testing.T, round int) {
	t.Helper()
	const path = "/apis/example.apiserver.k8s.io/v1/pods"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	put := func(name string, generation int) {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, Annotations: map[string]string{
			"padding": strings.Repeat(string(rune('a'+generation%26)), levelBytes),
		}}}
		s.put(t, pod)
	}
	name := func(i int) string { return fmt.Sprintf("pod-%03d", i) }
	for i := range levelPods {
		put(name(i), 2*round)
	}
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io"
	var got <-chan struct{} // of the watch that is opened last
	for _, compressed := range []bool{true, false} {
		for _, accept := range []string{"application/vnd.kubernetes.protobuf", table, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/json"} {
			for range 3 { // what two have asked for is kept
				require.Equal(t, http.StatusOK, ask(t, s.with, path+"?resourceVersion=0", accept, compressed).status)
			}
			require.Equal(t, http.StatusOK, ask(t, s.with, path+"?limit=10", accept, compressed).status)
			for range 2 {
				got = s.watchFor(ctx, t, s.with, path, strings.Replace(accept, "MetadataList", "Metadata", 1), compressed)
			}
		}
	}
	for i := range levelPods {
		put(name(i), 2*round+1)
	}
	put(lastPod, round)
	select {
	case <-got:
	case <-time.After(time.Minute):
		require.FailNow(t, "the last pod does not come")
	}
	cancel()
	s.with.Client().CloseIdleConnections()
}

// watchFor opens a watch with the initial state, and reads it until the context ends. The
// channel is closed when a watch as JSON has brought the last pod.
func (s *twins) watchFor(ctx context.Context, t *testing.T, served *httptest.Server, path, accept string, compressed bool) <-chan struct{} {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, served.URL+path+"?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", nil)
	require.NoError(t, err)
	r.Header.Set("Accept", accept)
	if compressed {
		r.Header.Set("Accept-Encoding", "gzip")
	}
	response, err := served.Client().Do(r)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode, "a watch as %s", accept)
	got := make(chan struct{})
	go func() { // ends with the context
		lines := bufio.NewScanner(response.Body) // of what is compressed, the first piece is long
		for lines.Buffer(nil, 4*levelBytes); lines.Scan(); {
			if bytes.Contains(lines.Bytes(), []byte(lastPod)) {
				close(got)
				break
			}
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}()
	return got
}
