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
	events io.Reader // of the body, decompressed
	cancel context.CancelFunc
	buffer []byte
	// pending is what was read of the next events.
	pending []byte
}

// OpenWatch opens a watch of all devices from after a resourceVersion on. The
// caller ends the watch.
func (c *Client) OpenWatch(ctx context.Context, after string) (*Watch, error) {
	return c.watch(ctx, url.Values{"watch": {"true"}, "resourceVersion": {after}}, false)
}

// Beginning is what a watch begins with.
type Beginning struct {
	// Selector is a label selector; all devices match an empty one.
	Selector string
	// Objects is how many match.
	Objects int
	// Gzip asks for compression, as client-go does. The server compresses each
	// event for itself then, later ones too.
	Gzip bool
}

// WatchList opens a watch that begins with the whole state and a bookmark behind
// it, as client-go's Reflector does, and reads it to that bookmark. The caller
// ends the watch.
func (c *Client) WatchList(ctx context.Context, b Beginning) (*Watch, error) {
	query := url.Values{
		"watch": {"true"}, "sendInitialEvents": {"true"}, "resourceVersionMatch": {"NotOlderThan"}, "allowWatchBookmarks": {"true"},
	}
	if b.Selector != "" {
		query.Set("labelSelector", b.Selector)
	}
	w, err := c.watch(ctx, query, b.Gzip)
	if err != nil {
		return nil, err
	}
	if err := w.begin(b.Objects); err != nil {
		w.End()
		return nil, err
	}
	return w, nil
}

// begin reads n initial events and the bookmark.
func (w *Watch) begin(n int) error {
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

func (c *Client) watch(ctx context.Context, query url.Values, gzip bool) (*Watch, error) {
	ctx, cancel := context.WithCancel(ctx)
	r := Request{Path: V1, Accept: JSON, Query: query, Gzip: gzip}
	response, err := c.Do(ctx, r)
	if err != nil {
		cancel()
		return nil, err
	}
	w := &Watch{client: c, body: response.Body, cancel: cancel, buffer: make([]byte, 64<<10)}
	if w.events, err = decompressed(r, response); err != nil {
		w.End()
		return nil, fmt.Errorf("the watch: %w", err)
	}
	return w, nil
}

// Next waits for the next event that is not a bookmark.
func (w *Watch) Next() error {
	_, err := w.nextOfObject()
	return err
}

// NextVersion waits for the next event that is not a bookmark, and returns its
// resourceVersion.
func (w *Watch) NextVersion() (string, error) {
	event, err := w.nextOfObject()
	if err != nil {
		return "", err
	}
	return versionIn(event)
}

func (w *Watch) nextOfObject() ([]byte, error) {
	for {
		event, err := w.next()
		if err != nil || !bytes.HasPrefix(event, []byte(`{"type":"BOOKMARK"`)) {
			return event, err
		}
	}
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
	read, err := w.events.Read(w.buffer[n:])
	w.pending = w.buffer[:n+read]
	if read > 0 {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return errors.New("the server has ended the watch")
	}
	return err
}

// End ends the watch and leaves the client's connection. End may be called more
// than once, and while the watch is read.
func (w *Watch) End() {
	w.cancel()
	_ = w.body.Close()
}
