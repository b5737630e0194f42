// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
)

// retryPause is how long a client waits before it tries again.
const retryPause = 100 * time.Millisecond

// ends counts how watches ended that the client did not end.
type ends struct {
	errors  int // with an error other than 410
	expired int // with 410, while open or when it was opened
	closed  int // without a word
	refused int // attempts to open one
}

func (e *ends) add(other ends) {
	e.errors += other.errors
	e.expired += other.expired
	e.closed += other.closed
	e.refused += other.refused
}

// ended is how many watches ended; those that could not be opened are not among
// them.
func (e ends) ended() int { return e.errors + e.expired + e.closed }

// watcher keeps a watch open as a careful client does: it resumes where a watch
// broke and lists again only when it is told 410.
type watcher struct {
	client    *versioned.Clientset
	selection selection
	mu        struct {
		sync.Mutex
		segments []segment
		lists    []read
		ends     ends
		said     []string // what the errors were
	}
}

func newWatcher(client *versioned.Clientset, s selection) *watcher {
	return &watcher{client: client, selection: s}
}

func (w *watcher) run(ctx context.Context) {
	if !w.list(ctx) {
		return
	}
	for ctx.Err() == nil {
		stream, err := w.client.FleetV1().Devices(w.selection.namespace).Watch(ctx, metav1.ListOptions{
			ResourceVersion: strconv.FormatInt(w.to(), 10), LabelSelector: w.selection.labels.String(), AllowWatchBookmarks: true,
		})
		if err == nil {
			err = w.consume(stream)
			w.note(ctx, err, true)
		} else {
			w.note(ctx, err, false)
			pause(ctx)
		}
		if isExpired(err) && !w.list(ctx) {
			return
		}
	}
}

// pause waits for retryPause or the end of ctx.
func pause(ctx context.Context) {
	timer := time.NewTimer(retryPause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// list begins a new segment at a consistent list; false: ctx has ended.
func (w *watcher) list(ctx context.Context) bool {
	for ctx.Err() == nil {
		bounded, cancel := context.WithTimeout(ctx, requestTimeout)
		begun := time.Now()
		list, err := w.client.FleetV1().Devices("").List(bounded, metav1.ListOptions{})
		cancel()
		if err == nil {
			rv := version(list.ResourceVersion)
			w.mu.Lock()
			w.mu.lists = append(w.mu.lists, read{kind: "LIST of a watcher", fresh: true, begun: begun, rv: rv, items: itemsOf(list)})
			w.mu.segments = append(w.mu.segments, segment{from: rv, to: rv})
			w.mu.Unlock()
			return true
		}
		pause(ctx)
	}
	return false
}

// to is the last resourceVersion that the watcher has seen.
func (w *watcher) to() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.mu.segments) == 0 {
		return 0
	}
	return w.mu.segments[len(w.mu.segments)-1].to
}

// consume returns the error that the watch ended with; nil: it was closed.
func (w *watcher) consume(stream watch.Interface) error {
	defer stream.Stop()
	w.begin()
	for event := range stream.ResultChan() {
		if event.Type == watch.Error {
			return apierrors.FromObject(event.Object)
		}
		w.take(event)
	}
	return nil
}

// begin makes what comes next a segment of its own.
func (w *watcher) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	to := w.mu.segments[len(w.mu.segments)-1].to
	w.mu.segments = append(w.mu.segments, segment{from: to, to: to})
}

func (w *watcher) take(event watch.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &w.mu.segments[len(w.mu.segments)-1]
	device, ok := event.Object.(*fleetv1.Device)
	if !ok {
		s.disorder = append(s.disorder, fmt.Sprintf("%s of a %T", event.Type, event.Object))
		return
	}
	rv := version(device.ResourceVersion)
	bookmark := event.Type == watch.Bookmark
	if rv < s.to || (rv == s.to && !bookmark) {
		s.disorder = append(s.disorder, fmt.Sprintf("%s at %d comes after %d", event.Type, rv, s.to))
	}
	s.to = max(s.to, rv)
	if !bookmark {
		s.events = append(s.events, delivered{kind: event.Type, key: device.Namespace + "/" + device.Name, rv: rv, content: device.Spec.Model})
	}
}

// note counts an end, unless it was the client's own.
func (w *watcher) note(ctx context.Context, err error, opened bool) {
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case isExpired(err):
		w.mu.ends.expired++
	case !opened:
		w.mu.ends.refused++
	case err == nil:
		w.mu.ends.closed++
	default:
		w.mu.ends.errors++
	}
	if err != nil && opened {
		w.mu.said = append(w.mu.said, err.Error())
	}
}

func isExpired(err error) bool {
	status, ok := err.(apierrors.APIStatus)
	return ok && status.Status().Code == http.StatusGone
}

// collect gives what came since the last call: segments, lists, and how watches
// ended. Events above upTo are left for the next call.
func (w *watcher) collect(upTo int64) ([]segment, []read, ends, []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	segments, lists, counted, said := w.mu.segments, w.mu.lists, w.mu.ends, w.mu.said
	w.mu.lists, w.mu.ends, w.mu.said = nil, ends{}, nil
	w.mu.segments = nil
	if len(segments) > 0 {
		w.mu.segments = []segment{above(segments[len(segments)-1], upTo)}
	}
	return segments, lists, counted, said
}

// above is what of s is above upTo, as a segment of its own.
func above(s segment, upTo int64) segment {
	out := segment{from: min(max(s.from, upTo), s.to), to: s.to}
	for _, event := range s.events {
		if event.rv > upTo {
			out.events = append(out.events, event)
		}
	}
	return out
}
