// SPDX-License-Identifier: Apache-2.0

package shadow

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/metrics"
)

// comparedWatch forwards the events of a serving watch and compares them with the shadow's. Its two
// goroutines end with the request, the serving watch, or Stop of the comparedWatch or Storage.
// Storage.Stop waits for them.
type comparedWatch struct {
	*watch.ProxyWatcher // of out
	*Storage
	key     string
	opts    storage.ListOptions
	serving watch.Interface
	out     chan watch.Event
	notes   chan record // events, and the bookmark that ends an initial state
}

// Watch implements storage.Interface.
func (s *Storage) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	serving, err := s.Interface.Watch(ctx, key, opts)
	if err != nil || !s.drawn() {
		return serving, err
	}
	leave := s.enter(&s.config.Room.watches, mostWatches, 0)
	if leave == nil {
		s.config.Metrics.ShadowSkipped(metrics.ShadowNoRoom)
		return serving, nil
	}
	out := make(chan watch.Event)
	w := &comparedWatch{watch.NewProxyWatcher(out), s, key, opts, serving, out, make(chan record, mostNotes)}
	if !s.run(func() {
		defer context.AfterFunc(ctx, w.ProxyWatcher.Stop)()
		defer context.AfterFunc(s.ctx, w.ProxyWatcher.Stop)()
		go w.pass()
		s.try(metrics.ShadowWatch, w.follow)
		leave()
		for range w.notes { // until pass ends
		}
	}) {
		leave()
		return serving, nil
	}
	return w.ProxyWatcher, nil
}

func (w *comparedWatch) pass() {
	defer close(w.notes)
	defer close(w.out)
	defer w.serving.Stop()
	for noting := true; ; {
		select {
		case event, open := <-w.serving.ResultChan():
			if !open {
				return
			}
			noting = noting && event.Type != watch.Error && w.try(metrics.ShadowWatch, func() error { return w.note(event) })
			select {
			case w.out <- event: // the client may change the object after this
			case <-w.StopChan():
				return
			}
		case <-w.StopChan():
			return
		}
	}
}

func (w *comparedWatch) note(event watch.Event) error {
	n, err := recordOf(event.Object, nil)
	if err != nil {
		return err
	}
	n.event = event.Type
	if event.Type == watch.Bookmark {
		if accessor, err := meta.Accessor(event.Object); err != nil || accessor.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" {
			return err
		}
	} else if n.version%16 == 0 {
		n.content = own(event.Object.DeepCopyObject())
	}
	select {
	case w.notes <- n:
		return nil
	default:
		return errNoRoom
	}
}

// own returns the object of an event, copied if shared.
func own(object runtime.Object) runtime.Object {
	if shared, ok := object.(runtime.CacheableObject); ok {
		return shared.GetObject()
	}
	return object
}

func (w *comparedWatch) follow() error {
	from, err := w.start()
	if err != nil || from == 0 {
		return err
	}
	opts := w.opts
	opts.ResourceVersion, opts.ResourceVersionMatch, opts.SendInitialEvents = strconv.FormatUint(from, 10), "", nil
	opts.Predicate.AllowWatchBookmarks = false
	shadow, err := w.config.Shadow.Watch(w.ctx, w.key, opts)
	if err != nil {
		return err
	}
	defer shadow.Stop()
	last := record{version: from}
	for n := range w.notes {
		if n.version <= from { // part of the initial state
			continue
		}
		last, err = nextEvent(shadow, patience)
		if errors.Is(err, errLate) { // the whole shadow may be late: the list waits for it or fails
			if _, err = w.listAt(n.version); err == nil {
				last, err = nextEvent(shadow, patience)
			}
		}
		found := Difference{What: n.difference(last), Serving: n.version, Shadow: last.version}
		if errors.Is(err, errLate) {
			found.What, err = "missing event", nil
		}
		if err = w.conclude(metrics.ShadowWatch, found, err); err != nil || found.What != "" {
			return err
		}
	}
	if more, err := nextEvent(shadow, time.Second); err == nil && (more.version < last.version || more.difference(last) == "") {
		return w.conclude(metrics.ShadowWatch, Difference{What: "event too many", Serving: last.version, Shadow: more.version}, nil)
	}
	return nil
}

// start returns the version after which events are compared, 0 if none.
func (w *comparedWatch) start() (uint64, error) {
	state := w.opts.SendInitialEvents != nil && *w.opts.SendInitialEvents
	if state && w.opts.Predicate.AllowWatchBookmarks {
		return w.compareState()
	}
	if rv, err := strconv.ParseUint(w.opts.ResourceVersion, 10, 64); err == nil && rv > 0 && !state {
		return rv, nil
	}
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	return w.GetCurrentResourceVersion(ctx)
}

// compareState compares an initial state with the shadow's list at the version of the bookmark that
// ends it, and returns this version.
func (w *comparedWatch) compareState() (uint64, error) {
	state, taken := map[types.NamespacedName]record{}, int64(0)
	defer func() { w.config.Room.objects.Add(-taken) }()
	for n := range w.notes {
		switch n.event {
		case watch.Bookmark:
			shadow, err := w.listAt(n.version)
			if err != nil {
				return 0, err
			}
			serving := &listed{version: n.version, remaining: -1, items: slices.SortedFunc(maps.Values(state), byName)}
			slices.SortFunc(shadow.items, byName)
			return n.version, w.conclude(metrics.ShadowWatch, Difference{What: serving.difference(shadow), Serving: n.version, Shadow: shadow.version}, nil)
		case watch.Deleted:
			delete(state, n.name)
		default:
			if taken++; w.config.Room.objects.Add(1) > mostObjects {
				return 0, errNoRoom
			}
			n.event = ""
			state[n.name] = n
		}
	}
	return 0, nil
}

func byName(a, b record) int { return strings.Compare(a.name.String(), b.name.String()) }

func (w *comparedWatch) listAt(version uint64) (*listed, error) {
	opts := storage.ListOptions{Recursive: w.opts.Recursive, Predicate: w.opts.Predicate}
	opts.Predicate.Limit, opts.Predicate.Continue = 0, ""
	return w.list(w.ctx, w.config.Shadow, w.key, opts, version)
}

func nextEvent(shadow watch.Interface, within time.Duration) (record, error) {
	select {
	case event, open := <-shadow.ResultChan():
		if !open || event.Type == watch.Error {
			return record{}, errExcused
		}
		object := own(event.Object)
		r, err := recordOf(object, object)
		r.event = event.Type
		return r, err
	case <-time.After(within):
		return record{}, errLate
	}
}
