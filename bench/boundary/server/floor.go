// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// floor answers with the bytes of the server under it and next to nothing around
// them: what a server costs that has nothing to do but to write. Connections, TLS
// and HTTP/2 are those of the server under it. No filter runs, neither authentication
// nor authorization, so that floor is for measurements only.
//
// A list at resourceVersion 0 is made three times for each URL and header, until the
// server has its bytes, and written from memory from then on. Watches of one URL and header share one watch of the server, whose
// bytes are written to each of them, and flushed, in a goroutine of its own.
// Everything else is left to the server.
type floor struct {
	server http.Handler

	mu struct {
		sync.Mutex
		lists map[string]*recorded
		fans  map[string]*fan
	}
}

func newFloor(server http.Handler) *floor {
	f := &floor{server: server}
	f.mu.lists, f.mu.fans = map[string]*recorded{}, map[string]*fan{}
	return f
}

// ServeHTTP implements http.Handler.
func (f *floor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	switch {
	case r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/devices"):
		f.server.ServeHTTP(w, r)
	case query.Get("watch") != "" && query.Get("sendInitialEvents") == "":
		f.watch(w, r)
	case isRepeatable(query):
		f.list(w, r)
	default:
		f.server.ServeHTTP(w, r)
	}
}

func isRepeatable(query url.Values) bool {
	return len(query) == 1 && query.Get("resourceVersion") == "0"
}

// keyOf names requests that have the same answer.
func keyOf(r *http.Request) string {
	return strings.Join([]string{r.URL.RequestURI(), r.Header.Get("Accept"), r.Header.Get("Accept-Encoding")}, "\n")
}

// recorded is an answer of the server.
type recorded struct {
	header http.Header
	status int
	body   []byte
	// left is how often the server makes the answer again.
	left int
}

// Header implements http.ResponseWriter.
func (a *recorded) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *recorded) WriteHeader(status int) { a.status = status }

// Write implements http.ResponseWriter.
func (a *recorded) Write(p []byte) (int, error) {
	a.body = append(a.body, p...)
	return len(p), nil
}

// floorWrites is how much the floor writes at once, in bytes.
const floorWrites = 64 << 10

func (f *floor) list(w http.ResponseWriter, r *http.Request) {
	key := keyOf(r)
	f.mu.Lock()
	made := f.mu.lists[key]
	f.mu.Unlock()
	if made == nil || made.left > 0 {
		left := 2
		if made != nil {
			left = made.left - 1
		}
		made = &recorded{header: http.Header{}, status: http.StatusOK, left: left}
		f.server.ServeHTTP(made, r)
		if made.status == http.StatusOK {
			f.mu.Lock()
			f.mu.lists[key] = made
			f.mu.Unlock()
		}
	}
	maps.Copy(w.Header(), made.header)
	w.WriteHeader(made.status)
	for piece := range slices.Chunk(made.body, floorWrites) {
		if _, err := w.Write(piece); err != nil {
			return
		}
	}
}

// fan is one watch of the server whose bytes go to many clients.
type fan struct {
	stop context.CancelFunc
	// head is closed once the server has sent its header.
	head   chan struct{}
	header http.Header
	once   sync.Once
	// pending is what the server has written since it flushed. Only the server's
	// goroutine uses it.
	pending []byte

	mu struct {
		sync.Mutex
		members map[chan []byte]bool
		ended   bool
	}
}

func (f *floor) watch(w http.ResponseWriter, r *http.Request) {
	joined, events := f.join(r)
	defer f.leave(r, joined, events)
	select {
	case <-joined.head:
	case <-r.Context().Done():
		return
	}
	maps.Copy(w.Header(), joined.header)
	flusher := w.(http.Flusher)
	flusher.Flush()
	for {
		select {
		case p, open := <-events:
			if !open {
				return
			}
			if _, err := w.Write(p); err != nil {
				return
			}
			flusher.Flush()
		case <-r.Context().Done():
			return
		}
	}
}

// join adds a client to the watch of its URL, which the first one begins.
func (f *floor) join(r *http.Request) (*fan, chan []byte) {
	// More than a client of the bench ever has unread.
	events := make(chan []byte, 1000)
	f.mu.Lock()
	defer f.mu.Unlock()
	key := keyOf(r)
	to := f.mu.fans[key]
	if to == nil {
		ctx, stop := context.WithCancel(context.WithoutCancel(r.Context()))
		to = &fan{stop: stop, head: make(chan struct{}), header: http.Header{}}
		to.mu.members = map[chan []byte]bool{}
		f.mu.fans[key] = to
		// Ends when its last client leaves, or with the server's own end of watches;
		// nobody awaits the goroutine.
		go func() {
			f.server.ServeHTTP(to, r.Clone(ctx))
			to.end()
		}()
	}
	to.mu.Lock()
	defer to.mu.Unlock()
	if to.mu.ended {
		close(events)
	} else {
		to.mu.members[events] = true
	}
	return to, events
}

// leave takes a client away, and ends the watch that nobody has any more.
func (f *floor) leave(r *http.Request, from *fan, events chan []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	from.mu.Lock()
	defer from.mu.Unlock()
	delete(from.mu.members, events)
	if len(from.mu.members) == 0 {
		from.stop()
		if key := keyOf(r); f.mu.fans[key] == from {
			delete(f.mu.fans, key)
		}
	}
}

// Header implements http.ResponseWriter.
func (t *fan) Header() http.Header { return t.header }

// WriteHeader implements http.ResponseWriter.
func (t *fan) WriteHeader(int) {}

// Write implements http.ResponseWriter.
func (t *fan) Write(p []byte) (int, error) {
	t.pending = append(t.pending, p...)
	return len(p), nil
}

// CloseNotify implements http.CloseNotifier, without which the server's filters do
// not pass Flush on.
func (t *fan) CloseNotify() <-chan bool { return nil }

// Flush implements http.Flusher.
func (t *fan) Flush() {
	t.once.Do(func() { close(t.head) })
	p := t.pending
	t.pending = nil
	if len(p) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for events := range t.mu.members {
		select {
		case events <- p:
		default: // a client that is so far behind gets no more
			delete(t.mu.members, events)
			close(events)
		}
	}
}

// end ends the watches of all clients.
func (t *fan) end() {
	t.once.Do(func() { close(t.head) })
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.ended = true
	for events := range t.mu.members {
		close(events)
	}
	clear(t.mu.members)
}
