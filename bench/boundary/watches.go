// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
)

// Watch is an open watch, which is read event by event but not decoded: each
// event is a line.
type Watch struct {
	client *Client
	body   io.ReadCloser
	cancel context.CancelFunc
	buffer []byte
	// pending is what was read of the next events.
	pending []byte
}

// OpenWatch opens a watch of all devices on a client of its own, from after a
// resourceVersion on. The caller closes the watch.
func (s *Server) OpenWatch(ctx context.Context, after string) (*Watch, error) {
	client, err := s.Connect()
	if err != nil {
		return nil, err
	}
	w, err := client.watch(ctx, url.Values{"watch": {"true"}, "resourceVersion": {after}})
	if err != nil {
		client.Close()
		return nil, err
	}
	return w, nil
}

// WatchList opens a watch that begins with the whole state and a bookmark behind
// it, as client-go's Reflector does, reads it to that bookmark, and closes the
// watch. There must be n devices.
func (c *Client) WatchList(ctx context.Context, n int) error {
	w, err := c.watch(ctx, url.Values{
		"watch": {"true"}, "sendInitialEvents": {"true"}, "resourceVersionMatch": {"NotOlderThan"}, "allowWatchBookmarks": {"true"},
	})
	if err != nil {
		return err
	}
	defer w.end()
	for range n {
		if _, err := w.next(); err != nil {
			return err
		}
	}
	last, err := w.next()
	if err == nil && !bytes.Contains(last, []byte(`"k8s.io/initial-events-end"`)) {
		err = fmt.Errorf("after %d initial events there is no bookmark that ends them: %.200s", n, last)
	}
	return err
}

func (c *Client) watch(ctx context.Context, query url.Values) (*Watch, error) {
	ctx, cancel := context.WithCancel(ctx)
	response, err := c.Do(ctx, Request{Path: V1, Accept: JSON, Query: query})
	if err != nil {
		cancel()
		return nil, err
	}
	return &Watch{client: c, body: response.Body, cancel: cancel, buffer: make([]byte, 64<<10)}, nil
}

// Next waits for the next event.
func (w *Watch) Next() error {
	_, err := w.next()
	return err
}

// next returns the next event, which is valid until the next call. An event that
// ends the watch is an error.
func (w *Watch) next() ([]byte, error) {
	searched := 0
	for {
		if end := bytes.IndexByte(w.pending[searched:], '\n'); end >= 0 {
			event := w.pending[:searched+end]
			w.pending = w.pending[searched+end+1:]
			if bytes.HasPrefix(event, []byte(`{"type":"ERROR"`)) {
				return nil, fmt.Errorf("instead of an event: %.500s", event)
			}
			return event, nil
		}
		searched = len(w.pending)
		if err := w.fill(); err != nil {
			return nil, err
		}
	}
}

// fill reads more behind what is pending.
func (w *Watch) fill() error {
	if len(w.pending) == len(w.buffer) {
		w.buffer = make([]byte, 2*len(w.buffer))
	}
	n := copy(w.buffer, w.pending)
	read, err := w.body.Read(w.buffer[n:])
	w.pending = w.buffer[:n+read]
	if read > 0 {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return errors.New("the server has ended the watch")
	}
	return err
}

// Received is how many bytes have come over the watch's connection.
func (w *Watch) Received() int64 { return w.client.Received() }

// end ends the request and leaves the connection.
func (w *Watch) end() {
	w.cancel()
	_ = w.body.Close()
}

// Close ends the watch and its connection.
func (w *Watch) Close() {
	w.end()
	w.client.Close()
}
