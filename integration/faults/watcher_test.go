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
	"github.com/kube-watchcache/watchcache/integration/internal/judge"
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
	selection judge.Selection
	mu        struct {
		sync.Mutex
		streams []judge.Stream
		lists   []judge.Read
		ends    ends
		said    []string // what the errors were
	}
}

func newWatcher(client *versioned.Clientset, s judge.Selection) *watcher {
	return &watcher{client: client, selection: s}
}

func (w *watcher) run(ctx context.Context) {
	if !w.list(ctx) {
		return
	}
	for ctx.Err() == nil {
		stream, err := w.client.FleetV1().Devices(w.selection.Namespace).Watch(ctx, metav1.ListOptions{
			ResourceVersion: strconv.FormatInt(w.to(), 10), LabelSelector: labelSelector(w.selection), AllowWatchBookmarks: true,
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
			rv := judge.Version(list.ResourceVersion)
			w.mu.Lock()
			w.mu.lists = append(w.mu.lists, judge.Read{Kind: "LIST of a watcher", Fresh: true, Begun: begun, RV: rv, Items: judge.ItemsOf(list)})
			w.mu.streams = append(w.mu.streams, judge.Stream{Selection: w.selection, From: rv})
			w.mu.Unlock()
			return true
		}
		pause(ctx)
	}
	return false
}

// labelSelector is the selector as requests have it.
func labelSelector(s judge.Selection) string {
	if s.Labels == nil {
		return ""
	}
	return s.Labels.String()
}

// to is the last resourceVersion that the watcher has seen.
func (w *watcher) to() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.mu.streams) == 0 {
		return 0
	}
	return w.last().To()
}

// last is the stream under way. The caller holds mu.
func (w *watcher) last() *judge.Stream { return &w.mu.streams[len(w.mu.streams)-1] }

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

// begin makes what comes next a stream of its own.
func (w *watcher) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.streams = append(w.mu.streams, judge.Stream{Selection: w.selection, From: w.last().To()})
}

func (w *watcher) take(event watch.Event) {
	device, ok := event.Object.(*fleetv1.Device)
	if !ok {
		// No judge lets an event of version -1 pass.
		device = &fleetv1.Device{Spec: fleetv1.DeviceSpec{Model: fmt.Sprintf("a %T", event.Object)}}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last().Events = append(w.last().Events, judge.EventOf(event.Type, device))
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

// collect gives what came since the last call: streams, lists, and how watches
// ended. Events above upTo are left for the next call.
func (w *watcher) collect(upTo int64) ([]judge.Stream, []judge.Read, ends, []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	streams, lists, counted, said := w.mu.streams, w.mu.lists, w.mu.ends, w.mu.said
	w.mu.lists, w.mu.ends, w.mu.said = nil, ends{}, nil
	w.mu.streams = nil
	if len(streams) > 0 {
		w.mu.streams = []judge.Stream{above(streams[len(streams)-1], upTo)}
	}
	return streams, lists, counted, said
}

// above is what of s is above upTo, as a stream of its own.
func above(s judge.Stream, upTo int64) judge.Stream {
	out := s
	out.From, out.Events = min(max(s.From, upTo), s.To()), nil
	for _, event := range s.Events {
		if event.RV > upTo {
			out.Events = append(out.Events, event)
		}
	}
	return out
}
