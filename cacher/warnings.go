// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
)

// loggerOf returns the logger of a resource's cache. All lines of one cache have
// the resource in the same form.
func loggerOf(resource schema.GroupResource) klog.Logger {
	return klog.LoggerWithValues(klog.LoggerWithName(klog.Background(), "watchcache"), "resource", resource.String())
}

// warnInterval is the least time between two warnings of one kind.
const warnInterval = time.Minute

// warnings limits how often a cache logs an error of one kind.
type warnings struct {
	mu struct {
		sync.Mutex
		kinds map[string]*warned
	}
}

type warned struct {
	last       time.Time
	suppressed int
}

// due reports whether a warning of this kind is to be logged now, and how many
// were not since the last one.
func (w *warnings) due(kind string, now time.Time) (suppressed int, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.kinds == nil {
		w.mu.kinds = make(map[string]*warned)
	}
	k := w.mu.kinds[kind]
	switch {
	case k == nil:
		w.mu.kinds[kind] = &warned{last: now}
		return 0, true
	case now.Sub(k.last) < warnInterval:
		k.suppressed++
		return 0, false
	}
	suppressed = k.suppressed
	*k = warned{last: now}
	return suppressed, true
}

// warn notes an error that the cache recovers from but that a person must mend,
// and logs it, once a minute for each kind: what happened, what the cache does
// about it, and what a person can do. The content of objects is never logged.
func (e *engine) warn(kind, message string, err error, remedy string) {
	err = withoutContent(err)
	e.errors.add(message, err, e.config.Clock.Now())
	if suppressed, ok := e.warnings.due(kind, e.config.Clock.Now()); ok {
		klog.ErrorS(err, message, "resource", e.config.GroupResource, "resourceVersion", e.state.RV(), "remedy", remedy, "suppressed", suppressed)
	}
}

// noteError notes an error that the cache recovers from by itself. The message
// says what happened, and is the same for all resources and objects.
func (e *engine) noteError(message string, err error) {
	err = withoutContent(err)
	e.errors.add(message, err, e.config.Clock.Now())
	klog.V(1).InfoS(message, "resource", e.config.GroupResource, "err", err)
}
