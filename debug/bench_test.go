// SPDX-License-Identifier: Apache-2.0

//go:build unix

package debug

import (
	"fmt"
	"net/http"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/internal/cachetest"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// BenchmarkManyWatchers is a request to a cache with 100,000 open watches of 100
// namespaces: by namespace, 0 to 19 events wait for clients that read none, so
// that 3,000 watches are parked. Beside the time it reports the CPU time of the
// process, the garbage collector's included, which other programs change less.
func BenchmarkManyWatchers(b *testing.B) {
	const watchers, namespaces = 100_000, 100
	store := cachetest.NewStore()
	c := cachetest.Start(b, store, func(c *cacher.Config) { c.DispatchBudget = -1 })
	for i := range watchers {
		ctx := cacher.WithClient(b.Context(), status.Client{
			User:      fmt.Sprintf("system:node:node-%04d", i%5000),
			UserAgent: "kubelet/v1.36.0",
			Address:   fmt.Sprintf("10.%d.%d.%d:%d", i%7, i%200, i%250, 30000+i%1000),
		})
		w, err := c.Watch(ctx, fmt.Sprintf("/pods/ns-%02d/", i%namespaces), storage.ListOptions{ResourceVersion: "1", Recursive: true, Predicate: storage.Everything})
		require.NoError(b, err)
		b.Cleanup(w.Stop)
	}
	counts := func() status.Counts {
		status, err := c.StatusPage(status.Query{})
		require.NoError(b, err)
		return status.Watches
	}
	cachetest.Until(b, "all watches are live", func() bool { return counts().Live == watchers })
	for ns := range namespaces {
		for i := range ns % 20 {
			cachetest.Put(store, poddata.Pod(fmt.Sprintf("ns-%02d/pod-%d", ns, i)))
		}
	}
	cachetest.Until(b, "slow watches are parked", func() bool { return counts().Parked == 3*watchers/namespaces*5 })

	h := New(Config{Caches: func() []*cacher.Cacher { return []*cacher.Cacher{c} }})
	for _, order := range []string{"lag", "-lag", "age", "user", "-address"} {
		for _, page := range []struct{ limit, offset int }{{20, 0}, {1000, 0}, {20, 50_000}, {20, 99_000}, {1000, 99_000}} {
			query := fmt.Sprintf("&sort=%s&limit=%d&offset=%d", order, page.limit, page.offset)
			b.Run(query[1:], func(b *testing.B) {
				began := cpuTime(b)
				defer func() { b.ReportMetric(float64(cpuTime(b)-began)/float64(b.N), "cpu-ns/op") }()
				for b.Loop() {
					request, err := http.NewRequest(http.MethodGet, Path+"?format=json"+query, nil)
					require.NoError(b, err)
					var answer counted
					h.ServeHTTP(&answer, request)
					require.Equal(b, strconv.Itoa(answer.bytes), answer.Header().Get("Content-Length"))
				}
			})
		}
	}
}

// cpuTime returns the CPU time that the process has spent.
func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// counted is an answer that nobody keeps.
type counted struct {
	header http.Header
	bytes  int
}

func (c *counted) Header() http.Header {
	if c.header == nil {
		c.header = http.Header{}
	}
	return c.header
}

func (c *counted) Write(p []byte) (int, error) {
	c.bytes += len(p)
	return len(p), nil
}

func (c *counted) WriteHeader(int) {}
