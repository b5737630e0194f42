// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/keptlists"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// seen is one thing that a watcher was told.
type seen struct {
	kind string // ADDED, MODIFIED, DELETED, BOOKMARK, ERROR, closed
	name string
	rv   uint64
	// text is the whole of an event, and what is behind it.
	text    string
	content string // of an object, without its version
	end     bool   // of the initial events
	code    int32  // of an error
	at      time.Time
	// encoded is the serialization that watchers share, if it is not that of the object.
	encoded string
}

func seeEvent(event watch.Event) seen {
	object := event.Object
	out := seen{kind: string(event.Type)}
	if cached, ok := object.(runtime.CacheableObject); ok {
		object = cached.GetObject()
		if wanted, got := encode(object), encodeShared(cached); got != wanted {
			out.encoded = got
		}
	}
	switch object := object.(type) {
	case *metav1.Status:
		out.code = object.Code
		out.text = fmt.Sprintf("ERROR %d %s", object.Code, object.Reason)
	case *example.Pod:
		out.rv, _ = strconv.ParseUint(object.ResourceVersion, 10, 64)
		if event.Type == watch.Bookmark {
			out.text = "BOOKMARK@" + object.ResourceVersion
			if out.end = object.Annotations[metav1.InitialEventsAnnotationKey] == "true"; out.end {
				out.text += " end of initial events"
			}
			return out
		}
		out.name = object.Namespace + "/" + object.Name
		out.content = show(object, "")
		out.text = out.kind + " " + show(object, object.ResourceVersion)
	default:
		out.text = fmt.Sprintf("%s %T", event.Type, object)
	}
	return out
}

// encode serializes an object, in a format of the clients' own.
func encode(object runtime.Object) string {
	if pod, ok := object.(*example.Pod); ok {
		return show(pod, pod.ResourceVersion)
	}
	return fmt.Sprintf("%T", object)
}

// encodeShared returns the serialization that all watchers share.
func encodeShared(object runtime.CacheableObject) string {
	var b bytes.Buffer
	if err := object.CacheEncode("simulation", func(object runtime.Object, w io.Writer) error {
		_, err := io.WriteString(w, encode(object))
		return err
	}, &b); err != nil {
		return "error: " + err.Error()
	}
	return b.String()
}

// watcher is a client that watches. A goroutine opens the watch, and one reads it
// while the client reads.
type watcher struct {
	name   string
	cancel context.CancelFunc

	mu struct {
		sync.Mutex
		result watch.Interface // nil until it is open
		err    error           // of the request
		// pause is closed to make the client stop reading; nil: it does not read.
		pause  chan struct{}
		silent bool
		news   []seen
	}
}

func openWatch(ctx context.Context, cancel context.CancelFunc, c *cacher.Cacher, name, key string, opts storage.ListOptions, silent bool) *watcher {
	w := &watcher{name: name, cancel: cancel}
	w.mu.silent = silent
	if !silent { // the others get private copies of initial events
		ctx = keptlists.ShareInitialEvents(ctx)
	}
	go func() {
		result, err := c.Watch(ctx, key, opts)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.mu.result, w.mu.err = result, err
		if err == nil && !w.mu.silent {
			w.readLocked()
		}
	}()
	return w
}

// readLocked makes the client read until it is told to pause or the watch ends.
func (w *watcher) readLocked() {
	pause, result := make(chan struct{}), w.mu.result
	w.mu.pause = pause
	go func() {
		for {
			select {
			case <-pause:
				return
			default:
			}
			select {
			case event, ok := <-result.ResultChan():
				if w.got(event, ok); !ok {
					return
				}
			case <-pause:
				return
			}
		}
	}()
}

func (w *watcher) got(event watch.Event, ok bool) {
	news := seen{kind: "closed", text: "closed"}
	if ok {
		news = seeEvent(event)
	}
	news.at = time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.news = append(w.mu.news, news)
}

// read has the client read, or not, and reports whether that is a change.
func (w *watcher) read(yes bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.silent == !yes {
		return false
	}
	w.mu.silent = !yes
	switch {
	case w.mu.result == nil:
	case yes:
		w.readLocked()
	default:
		close(w.mu.pause)
		w.mu.pause = nil
	}
	return true
}

// take has a client that does not read take one event.
func (w *watcher) take() {
	w.mu.Lock()
	result, silent := w.mu.result, w.mu.silent
	w.mu.Unlock()
	if result == nil || !silent {
		return
	}
	select {
	case event, ok := <-result.ResultChan():
		w.got(event, ok)
	default:
	}
}

func (w *watcher) stop() {
	w.mu.Lock()
	result := w.mu.result
	w.mu.Unlock()
	if result != nil {
		result.Stop()
	}
}

// take returns what has happened since the last call, and whether the request was
// answered.
func (w *watcher) observe() (news []seen, answered bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	news, w.mu.news = w.mu.news, nil
	return news, w.mu.result != nil || w.mu.err != nil, w.mu.err
}

// answer is that to a GET or a LIST.
type answer struct {
	err       error
	at        uint64 // of a list
	items     []string
	names     []string
	token     string
	remaining int64 // -1: not told
	// encoded is what is wrong with the encoding of a list, "" if nothing.
	encoded string
	took    time.Duration
}

// reader is a client that reads once.
type reader struct {
	name   string
	cancel context.CancelFunc
	result chan answer
}

func startRead(ctx context.Context, cancel context.CancelFunc, name string, read func(ctx context.Context) answer) *reader {
	r := &reader{name: name, cancel: cancel, result: make(chan answer, 1)}
	began := time.Now()
	go func() {
		a := read(context.WithValue(ctx, clientMark{}, true))
		a.took = time.Since(began)
		r.result <- a
	}()
	return r
}

// listPods lists. encoded returns what is wrong with the encoding of the list.
func listPods(ctx context.Context, c *cacher.Cacher, key string, opts storage.ListOptions, encoded func(runtime.Object) string) (a answer) {
	pods := &example.PodList{}
	a.remaining = -1
	if a.err = c.GetList(ctx, key, opts, pods); a.err != nil {
		var status apierrors.APIStatus
		if errors.As(a.err, &status) {
			a.token = status.Status().Continue
		}
		return a
	}
	a.at, _ = strconv.ParseUint(pods.ResourceVersion, 10, 64)
	for i := range pods.Items {
		pod := &pods.Items[i]
		a.items = append(a.items, show(pod, pod.ResourceVersion))
		a.names = append(a.names, pod.Namespace+"/"+pod.Name)
	}
	a.token, a.encoded = pods.Continue, encoded(pods)
	if pods.RemainingItemCount != nil {
		a.remaining = *pods.RemainingItemCount
	}
	return a
}

func getPod(ctx context.Context, c *cacher.Cacher, name string, opts storage.GetOptions) (a answer) {
	pod := &example.Pod{}
	if a.err = c.Get(ctx, poddata.Prefix+name, opts, pod); a.err == nil {
		a.items = []string{show(pod, pod.ResourceVersion)}
	}
	return a
}

// errorText is an error without its text.
func errorText(err error) string {
	var status apierrors.APIStatus
	switch {
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline exceeded"
	case storage.IsNotFound(err):
		return "not found"
	case storage.IsTooLargeResourceVersion(err):
		return "504 resourceVersion too large"
	case !errors.As(err, &status):
		return "error " + err.Error()
	}
	return fmt.Sprintf("%d %s", status.Status().Code, status.Status().Reason)
}

// itemsShown is how many items of a list a trace has.
const itemsShown = 10

func (a answer) String() string {
	if a.err != nil {
		return errorText(a.err)
	}
	out := ""
	if a.at > 0 {
		out = fmt.Sprintf("at %d:", a.at)
	}
	for i, item := range a.items {
		if i == itemsShown {
			out += fmt.Sprintf(" ... %d in all", len(a.items))
			break
		}
		out += " " + item
	}
	if a.token != "" {
		out += fmt.Sprintf(", and more (%d)", a.remaining)
	}
	if a.took > 0 {
		out += " after " + a.took.String()
	}
	return out
}
