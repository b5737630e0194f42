// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// Fill takes the objects of the storage's whole state, each as soon as it is there. The
// Reflector, which would gather them in a store of its own first, receives only the end.
// One goroutine uses a Fill.
type Fill interface {
	// Add takes an object of the state.
	Add(object runtime.Object)
	// Change takes a change that the storage has sent before the end of its state.
	// Objects that are added afterwards came after the change.
	Change(event watch.Event)
}

// TakeFill returns the Fill with the Reflector's last list, nil if there is none, and
// forgets it.
func (s *Source) TakeFill() Fill {
	s.mu.Lock()
	defer s.mu.Unlock()
	filled := s.mu.filled
	s.mu.filled = nil
	return filled
}

// setFilled notes that the whole state is in fill, which by fills: the Reflector's last
// watch, or nil, a list. One that the Reflector has left is too late.
func (s *Source) setFilled(fill Fill, by *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream.Load() == by {
		s.mu.filled = fill
	}
}

// list lists the storage into a Fill, in pages of page objects, 0: in one. The objects
// of a page are in the Fill while the next page is read. list returns an
// empty list, at the resourceVersion of the state.
func (s *Source) list(ctx context.Context, page int64) (runtime.Object, error) {
	if former := s.stream.Swap(nil); former != nil {
		former.cancel()
	}
	s.begins()
	s.watchAhead(ctx)
	fill, version := s.config.NewFill(), ""
	opts := storage.ListOptions{Recursive: true}
	for {
		if most := s.page.Load(); page > 0 && most > 0 {
			page = min(page, most)
		}
		opts.Predicate.Limit = page
		at, next, err := s.listPage(ctx, s.config.Prefix, 0, opts, func(object runtime.Object) error {
			fill.Add(object)
			return nil
		})
		if apierrors.IsResourceExpired(err) && page > 0 && opts.Predicate.Continue != "" {
			return s.list(ctx, 0) // a list in one is at one version, whatever is compacted meanwhile
		}
		if page > 1 && TooLarge(err) {
			s.page.Store(page / 2)
			continue
		}
		if err != nil {
			return nil, err
		}
		if version == "" {
			version = at
		}
		if opts.Predicate.Continue = next; next == "" {
			break
		}
	}
	s.setFilled(fill, nil)
	return s.emptyList(version)
}

// listPage lists a page of the storage, exactly at a version unless that is 0, and calls take
// with each object. It returns the resourceVersion and the continue token of the page.
func (s *Source) listPage(ctx context.Context, key string, version uint64, opts storage.ListOptions, take func(runtime.Object) error) (at, next string, err error) {
	if err := ctx.Err(); err != nil {
		return "", "", err // also if storage does not look at ctx
	}
	opts.Predicate.Label, opts.Predicate.Field = labels.Everything(), fields.Everything()
	exact := strconv.FormatUint(version, 10)
	if version > 0 && opts.Predicate.Continue == "" { // otherwise the version is in the token
		opts.ResourceVersion, opts.ResourceVersionMatch = exact, metav1.ResourceVersionMatchExact
	}
	list := s.config.NewList()
	if err := s.config.Storage.GetList(ctx, key, opts, list); err != nil {
		return "", "", err
	}
	of, err := meta.ListAccessor(list)
	if err != nil {
		return "", "", err
	}
	if at = of.GetResourceVersion(); version > 0 && at != exact {
		return "", "", fmt.Errorf("the storage was listed at resourceVersion %s, and answered with %q", exact, at)
	}
	// Each object on its own: an object would keep its page in memory.
	return at, of.GetContinue(), meta.EachListItemWithAlloc(list, take)
}

// TooLarge reports whether a list did not fit a message of gRPC: etcd before 3.7 sends a
// page of large objects as one, of at most 2 GiB.
func TooLarge(err error) bool {
	return status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "message larger than max")
}

// emptyList returns a list without items at the resourceVersion.
func (s *Source) emptyList(version string) (runtime.Object, error) {
	list := s.config.NewList()
	of, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	of.SetResourceVersion(version)
	return list, nil
}

// shownEvery is how often the Reflector is shown an initial event: it logs a message after
// ten seconds without any.
const shownEvery = 5 * time.Second

// take takes an event that comes before the end of the initial events. It shows one to
// the Reflector from time to time.
func (s *stream) take(from *Watch, event watch.Event) (failure watch.Event, ok bool) {
	from.busy.Store(true)
	defer from.busy.Store(false)
	if event.Type == watch.Added {
		s.fill.Add(event.Object)
	} else {
		s.fill.Change(event)
	}
	now := s.source.config.Clock.Now()
	from.hears(now)
	s.pause, s.broken = 0, time.Time{}
	if s.shown.IsZero() {
		s.shown = now
	}
	if now.Sub(s.shown) >= shownEvery {
		s.shown = now
		if !s.send(watch.Event{Type: watch.Added, Object: event.Object}) {
			return Failure(s.ctx.Err()), false
		}
	}
	return watch.Event{}, true
}
