// SPDX-License-Identifier: Apache-2.0

// Package usage measures what an API server uses, so that tests see whether
// clients that have left leave something behind.
package usage

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/kube-watchcache/watchcache/integration/internal/scrape"
)

// How much more there may be after the load than before it. The server's own
// work, a connection that is about to end and the collector's freedom are in it;
// what leaks with each watch or each read is hundreds and more.
const (
	MoreGoroutines = 60
	MoreHeap       = 64 << 20 // bytes; the window of changes is in it
)

// Server is what one server uses.
type Server struct {
	Goroutines, Heap float64 // bytes that are in use, after a collection
}

// Measure asks the server at url (https, host and port), as a client that may see
// its metrics and profiles.
func Measure(ctx context.Context, client *http.Client, url string) (s Server, err error) {
	if err := collect(ctx, client, url+"/debug/pprof/heap?gc=1"); err != nil {
		return s, err
	}
	if s.Heap, err = scrape.Value(ctx, client, url+"/metrics", "go_memstats_heap_alloc_bytes"); err != nil {
		return s, err
	}
	s.Goroutines, err = scrape.Value(ctx, client, url+"/metrics", "go_goroutines")
	return s, err
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

// Exceeds tells what there is more of than there may be.
func (s Server) Exceeds(before Server) error {
	if s.Goroutines > before.Goroutines+MoreGoroutines {
		return fmt.Errorf("the server has %.0f goroutines, and %.0f before the load", s.Goroutines, before.Goroutines)
	}
	if s.Heap > before.Heap+MoreHeap {
		return fmt.Errorf("the server uses %.1f MiB, and %.1f before the load", s.Heap/(1<<20), before.Heap/(1<<20))
	}
	return nil
}

// String is a part of a line.
func (s Server) String() string {
	return fmt.Sprintf("%.0f goroutines, %.1f MiB", s.Goroutines, s.Heap/(1<<20))
}
