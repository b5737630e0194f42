// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"
)

// recorder is a cache.ListerWatcher, with and without contexts, that passes
// everything on to another one, notes what was asked, and can get in the way. Its
// methods may be called from any goroutine.
type recorder struct {
	// inner gives what lists and watches now; a restarted server has another one.
	inner func() lister
	// plain hides that the other one can stream lists: reflectors then list and
	// watch. Set it before the reflector is made.
	plain bool
	mu    struct {
		sync.Mutex
		requests []request
		streams  map[*stream]struct{}
		failures []error
		refusal  error
		refusals int
		held     bool
		holding  int
	}
}

// lister is a cache.ListerWatcher in both its forms.
type lister interface {
	cache.ListerWatcher
	cache.ListerWatcherWithContext
}

// request is one LIST or WATCH that was sent.
type request struct {
	watch   bool
	options metav1.ListOptions
	err     error
}

// streamed tells whether a request is a watch that begins with a list.
func (r request) streamed() bool {
	return r.watch && r.options.SendInitialEvents != nil && *r.options.SendInitialEvents
}

var _ lister = &recorder{}

func newRecorder(inner func() lister) *recorder {
	r := &recorder{inner: inner}
	r.mu.streams = map[*stream]struct{}{}
	return r
}

// requests gives all that were sent so far.
func (r *recorder) requests() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.mu.requests)
}

// lists gives the LISTs and the watches that begin with one: how often the
// reflector has (re)listed, not counting pages.
func (r *recorder) lists() []request {
	return slices.DeleteFunc(r.requests(), func(q request) bool { return q.options.Continue != "" || q.watch && !q.streamed() })
}

// resumes gives the watches that begin at a resourceVersion.
func (r *recorder) resumes() []request {
	return slices.DeleteFunc(r.requests(), func(q request) bool { return !q.watch || q.streamed() })
}

// failures gives the errors that requests and watches have ended with so far.
func (r *recorder) failures() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.mu.failures)
}

// drop ends all open watches, without a word, as a broken connection does.
// Events that were held back are lost with them. drop reports how many watches there were.
func (r *recorder) drop() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.mu.streams {
		s.drop()
	}
	return len(r.mu.streams)
}

// refuse makes all requests fail with err from now on; nil ends that. Open watches
// stay.
func (r *recorder) refuse(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.refusal = err
}

// hold keeps back the events of all watches from now on, until release or drop.
func (r *recorder) hold() { r.setHeld(true) }

// release ends hold, and what was kept back is delivered.
func (r *recorder) release() { r.setHeld(false) }

func (r *recorder) setHeld(held bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.held = held
	for s := range r.mu.streams {
		s.wake()
	}
}

// holding is how many watches have an event that the receiver has not taken yet.
func (r *recorder) holding() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.holding
}

func (r *recorder) isHeld() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.held
}

func (r *recorder) addHolding(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.holding += n
}

// watching is how many watches are open.
func (r *recorder) watching() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.mu.streams)
}

// IsWatchListSemanticsUnSupported is how client-go asks whether lists can be
// streamed.
func (r *recorder) IsWatchListSemanticsUnSupported() bool {
	return r.plain || watchlist.DoesClientNotSupportWatchListSemantics(r.inner())
}

// List implements cache.Lister.
func (r *recorder) List(options metav1.ListOptions) (runtime.Object, error) {
	return r.ListWithContext(context.Background(), options)
}

// ListWithContext implements cache.ListerWithContext.
func (r *recorder) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	return r.list(options, func() (runtime.Object, error) { return r.inner().ListWithContext(ctx, options) })
}

func (r *recorder) list(options metav1.ListOptions, send func() (runtime.Object, error)) (runtime.Object, error) {
	if err := r.refused(); err != nil {
		return nil, err
	}
	list, err := send()
	r.note(request{options: options, err: err})
	return list, err
}

// Watch implements cache.Watcher.
func (r *recorder) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return r.WatchWithContext(context.Background(), options)
}

// WatchWithContext implements cache.WatcherWithContext.
func (r *recorder) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return r.watch(options, func() (watch.Interface, error) { return r.inner().WatchWithContext(ctx, options) })
}

func (r *recorder) watch(options metav1.ListOptions, send func() (watch.Interface, error)) (watch.Interface, error) {
	if err := r.refused(); err != nil {
		return nil, err
	}
	w, err := send()
	r.note(request{watch: true, options: options, err: err})
	if err != nil {
		return nil, err
	}
	s := newStream(r, w)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.refusal != nil {
		// Refused while it was on its way.
		s.drop()
	}
	r.mu.streams[s] = struct{}{}
	go s.run()
	return s, nil
}

func (r *recorder) refused() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.refusal != nil {
		r.mu.refusals++
	}
	return r.mu.refusal
}

// refusals is how many requests were refused so far. A client that sends one has
// done with all that its watch had brought.
func (r *recorder) refusals() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.refusals
}

func (r *recorder) note(q request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.requests = append(r.mu.requests, q)
	if q.err != nil {
		r.mu.failures = append(r.mu.failures, q.err)
	}
}

func (r *recorder) noteEvent(event watch.Event) {
	if event.Type != watch.Error {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.failures = append(r.mu.failures, apierrors.FromObject(event.Object))
}

func (r *recorder) forget(s *stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mu.streams, s)
}

// stream is one watch through a recorder. Its goroutine is started by the recorder
// and ended by Stop, by drop, or by the end of the watch itself.
type stream struct {
	recorder *recorder
	inner    watch.Interface
	result   chan watch.Event
	// woken has a token when held may have changed.
	woken   chan struct{}
	dropped chan struct{}
	drop    func()
}

func newStream(r *recorder, inner watch.Interface) *stream {
	s := &stream{
		recorder: r, inner: inner, result: make(chan watch.Event),
		woken: make(chan struct{}, 1), dropped: make(chan struct{}),
	}
	s.drop = sync.OnceFunc(func() { close(s.dropped) })
	return s
}

// Stop implements watch.Interface. The watch does not count as open from then on.
func (s *stream) Stop() {
	s.recorder.forget(s)
	s.drop()
}

// ResultChan implements watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.result }

func (s *stream) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

func (s *stream) run() {
	defer s.recorder.forget(s)
	defer close(s.result)
	defer s.inner.Stop()
	for {
		select {
		case event, ok := <-s.inner.ResultChan():
			if !ok || !s.deliver(event) {
				return
			}
		case <-s.dropped:
			return
		}
	}
}

// deliver hands an event on, once events are not held. False: the watch is over.
func (s *stream) deliver(event watch.Event) bool {
	s.recorder.noteEvent(event)
	s.recorder.addHolding(1)
	defer s.recorder.addHolding(-1)
	for s.recorder.isHeld() {
		select {
		case <-s.woken:
		case <-time.After(pollInterval):
		case <-s.dropped:
			return false
		}
	}
	select {
	case <-s.dropped: // first of all: what was held is lost
		return false
	default:
	}
	select {
	case s.result <- event:
		return true
	case <-s.dropped:
		return false
	}
}
