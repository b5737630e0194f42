// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
)

// Heap is what Go's runtime says of a server's memory, in bytes, and of it what
// the watch caches keep of serializations.
type Heap struct {
	// Live is what the last collection has found in use, and Goal is up to where the
	// heap may grow before the next one.
	Live, Goal int64
	// Objects is what is in use and what is garbage.
	Objects int64
	// Idle is what the runtime has from the system and nobody uses: free pages that
	// were not given back, and gaps between objects.
	Idle int64
	// Kept is the serializations that the caches keep, 0 in the shipped cacher.
	Kept int64
}

// Collect runs the server's garbage collector.
func (s *Server) Collect(ctx context.Context) error {
	client, err := s.Connect()
	if err != nil {
		return err
	}
	defer client.Close()
	response, err := client.Do(ctx, Request{Path: "/debug/pprof/heap", Query: url.Values{"gc": {"1"}}})
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// Heap asks the server for its metrics.
func (s *Server) Heap(ctx context.Context) (Heap, error) {
	client, err := s.Connect()
	if err != nil {
		return Heap{}, err
	}
	defer client.Close()
	response, err := client.Do(ctx, Request{Path: "/metrics"})
	if err != nil {
		return Heap{}, err
	}
	defer response.Body.Close()
	var h Heap
	found := 0
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		var to *int64
		switch {
		case name == "go_gc_heap_live_bytes":
			to = &h.Live
		case name == "go_gc_heap_goal_bytes":
			to = &h.Goal
		case name == "go_memory_classes_heap_free_bytes", name == "go_memory_classes_heap_unused_bytes":
			to = &h.Idle
		case name == "go_memory_classes_heap_objects_bytes":
			to = &h.Objects
		case strings.HasPrefix(name, "watchcache_bytes{") && strings.Contains(name, `part="encodings"`):
			to = &h.Kept
		default:
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return Heap{}, fmt.Errorf("the metric %s: %w", name, err)
		}
		if *to += int64(n); to != &h.Kept {
			found++
		}
	}
	if err := lines.Err(); err != nil {
		return Heap{}, err
	}
	if found < 5 {
		return Heap{}, fmt.Errorf("the server has %d of the five metrics of Go's heap", found)
	}
	return h, nil
}
