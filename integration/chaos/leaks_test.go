// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"io"
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/kube-watchcache/watchcache/integration/internal/judge"
	"github.com/kube-watchcache/watchcache/integration/internal/scrape"
)

// How much more there may be after the load than before it. The servers' own
// work, a connection that is about to end and the collector's freedom are in it;
// what leaks with each watch or each read is hundreds and more.
const (
	moreGoroutines = 60
	moreStreams    = 2
	moreHeap       = 64 << 20 // bytes; the window of changes is in it
)

// usage is what a run must not leave behind.
type usage struct {
	streams    int // of watches, in all members of etcd
	goroutines []float64
	heap       []float64 // bytes that are in use, by server
}

// measure asks members and servers.
func (r *run) measure(ctx context.Context) (u usage, err error) {
	for _, m := range r.cluster.Members() {
		n, err := m.WatchStreams(ctx)
		if err != nil {
			return u, err
		}
		u.streams += n
	}
	for _, s := range r.servers {
		client := s.Connect(r.t)
		if err := collect(ctx, client, s.Config.Host+"/debug/pprof/heap?gc=1"); err != nil {
			return u, err
		}
		heap, err := scrape.Value(ctx, client, s.Config.Host+"/metrics", "go_memstats_heap_alloc_bytes")
		if err != nil {
			return u, err
		}
		goroutines, err := scrape.Value(ctx, client, s.Config.Host+"/metrics", "go_goroutines")
		if err != nil {
			return u, err
		}
		utilnet.CloseIdleConnectionsFor(client.Transport)
		u.heap, u.goroutines = append(u.heap, heap), append(u.goroutines, goroutines)
	}
	return u, nil
}

// collect reads a profile, which runs the server's garbage collector.
func collect(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return nil
}

// exceeds tells what there is more of than there may be.
func (u usage) exceeds(before usage) error {
	if u.streams > before.streams+moreStreams {
		return fmt.Errorf("etcd serves %d streams of watches, and %d before the load", u.streams, before.streams)
	}
	for i := range u.goroutines {
		if u.goroutines[i] > before.goroutines[i]+moreGoroutines {
			return fmt.Errorf("server %d has %.0f goroutines, and %.0f before the load", i, u.goroutines[i], before.goroutines[i])
		}
		if u.heap[i] > before.heap[i]+moreHeap {
			return fmt.Errorf("server %d uses %.1f MiB, and %.1f before the load", i, u.heap[i]/(1<<20), before.heap[i]/(1<<20))
		}
	}
	return nil
}

// String is one line.
func (u usage) String() string {
	out := fmt.Sprintf("%d streams of watches in etcd", u.streams)
	for i := range u.goroutines {
		out += fmt.Sprintf("; server %c: %.0f goroutines, %.1f MiB", 'A'+i, u.goroutines[i], u.heap[i]/(1<<20))
	}
	return out
}

// baseline is the usage before the load.
func (r *run) baseline(ctx context.Context) (u usage) {
	r.t.Helper()
	r.await(ctx, "the usage before the load can't be measured", func() (err error) {
		u, err = r.measure(ctx)
		return err
	})
	return u
}

// leaks waits until the usage is what it was before, and tells what is more.
func (r *run) leaks(ctx context.Context, before usage) (after usage, found judge.Violations) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		now, err := r.measure(ctx)
		if err == nil {
			after, err = now, now.exceeds(before)
		}
		if err == nil {
			return after, nil
		}
		hold(ctx, 5*retryPause)
		if ctx.Err() != nil {
			found.Add(judge.Released, "%v after the load: %v; last %v", patience, err, after)
			return after, found
		}
	}
}
