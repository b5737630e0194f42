// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"runtime"
	"sync"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
)

// decoratedWatch is the function of a registry's Store that shows each event of a
// watch to its Decorator. TestStoreDecorator fails if it has another name.
const decoratedWatch = "k8s.io/apiserver/pkg/registry/generic/registry.(*decoratedWatcher).run"

// servedWatch is the function of a server that encodes the events of a watch. If it
// reads this one itself, every event comes to the response of the watch, and initial
// events are written to it by runs. TestCompressedWatches fails if the function has
// another name.
const servedWatch = "k8s.io/apiserver/pkg/endpoints/handlers.(*WatchServer).HandleHTTP"

// initialWatch is a watch with initial events. Like all events they share their
// serializations behind runtime.CacheableObject, but a registry's Decorator needs the
// object itself. So if a decorated watch reads this one, its initial events are private
// copies (docs/decisions/0007). The first caller of ResultChan is the reader: a cache has
// no other way to recognise a decorator.
type initialWatch struct {
	*watcher
	// tasks counts the goroutine that copies, done ends it.
	tasks *tasks.Group
	done  <-chan struct{}

	// look runs lookAtReader once, which writes the fields below.
	look sync.Once
	// plain is the channel that a decorated watch reads, nil for another reader.
	plain chan watch.Event
	// stopped is closed by Stop.
	stopped chan struct{}
	stop    sync.Once
}

var _ watch.Interface = (*initialWatch)(nil)

func newInitialWatch(w *watcher, tasks *tasks.Group, done <-chan struct{}) *initialWatch {
	return &initialWatch{watcher: w, tasks: tasks, done: done, stopped: make(chan struct{})}
}

// ResultChan implements watch.Interface.
func (w *initialWatch) ResultChan() <-chan watch.Event {
	w.look.Do(w.lookAtReader)
	if w.plain != nil {
		return w.plain
	}
	return w.watcher.ResultChan()
}

// Stop implements watch.Interface.
func (w *initialWatch) Stop() {
	w.stop.Do(func() { close(w.stopped) })
	w.watcher.Stop()
}

func (w *initialWatch) lookAtReader() {
	// The reader is above the frames of this function, of sync.Once and of
	// ResultChan.
	var above [8]uintptr
	frames := runtime.CallersFrames(above[:runtime.Callers(1, above[:])])
	for {
		frame, more := frames.Next()
		switch frame.Function {
		case decoratedWatch:
			w.copy()
			return
		case servedWatch:
			w.watcher.initial.Direct()
			return
		}
		if !more {
			return
		}
	}
}

// copy starts the goroutine that copies.
func (w *initialWatch) copy() {
	w.plain = make(chan watch.Event)
	if !w.tasks.Run(w.forward) {
		close(w.plain) // the cache has ended, and so has the watch
	}
}

// forward is the goroutine of a decorated watch, started by its reader. The
// goroutine ends with the watch, once the reader has the events before that or
// wants no more, and when done is closed; the owner of tasks awaits it.
func (w *initialWatch) forward() {
	defer close(w.plain)
	for event := range w.watcher.result {
		if o, ok := event.Object.(*initial); ok {
			event.Object = o.GetObject()
		}
		select {
		case w.plain <- event:
		case <-w.stopped:
			return
		case <-w.done:
			return
		}
	}
}
