// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// This file reads the storage's history of the time before a list. The Reflector has no
// part in it, and nothing here touches the watch that feeds the cache.

// askHistoryEvery is how often a storage is asked how far a watch of its history has
// come. etcd does not answer while one is on its way.
const askHistoryEvery = 100 * time.Millisecond

// History calls take with each event of the storage after the version from and up to
// the version to, in their order, and returns once there are no more. The storage must
// report the progress of its watches. The error is that of the storage, or of take, or
// of ctx; Expired recognises errors for compacted events.
func (s *Source) History(ctx context.Context, from, to uint64, take func(event watch.Event, version uint64) error) error {
	w, err := s.openBeside(ctx, metav1.ListOptions{ResourceVersion: strconv.FormatUint(from, 10)})
	if err != nil {
		return err
	}
	defer s.discard(w)
	ask := s.config.Clock.NewTicker(askHistoryEvery)
	defer ask.Stop()
	for asking := true; ; {
		if asking {
			// A failure is no reason to give up: the watch returns the error.
			_ = s.config.Storage.RequestWatchProgress(w.onStream(ctx))
		}
		select {
		case event, open := <-w.ResultChan():
			asking = false
			switch {
			case !open:
				return apierrors.FromObject(ended.Object)
			case event.Type == watch.Error:
				return apierrors.FromObject(event.Object)
			}
			_, version, _ := versionOf(event)
			switch {
			case version == 0:
				return errors.New("an event of the storage's history has no resourceVersion")
			case version > to, version == to && event.Type == watch.Bookmark:
				return nil
			case event.Type != watch.Bookmark:
				if err := take(event, version); err != nil {
					return err
				}
			}
		case <-ask.C():
			asking = true
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// StateAt calls take with the objects that the storage had at a version: all under the
// key, in pages of so many, or with a page of 0 the object with the key.
func (s *Source) StateAt(ctx context.Context, key string, version uint64, page int64, take func(runtime.Object) error) error {
	opts := storage.ListOptions{Recursive: page > 0}
	opts.Predicate.Limit = page
	for {
		next, err := s.listAt(ctx, key, version, opts, take)
		if err != nil || next == "" {
			return err
		}
		opts.Predicate.Continue = next
	}
}

// listAt lists at exactly a version and returns the continue token.
func (s *Source) listAt(ctx context.Context, key string, version uint64, opts storage.ListOptions, take func(runtime.Object) error) (next string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err // also if storage does not look at ctx
	}
	opts.Predicate.Label, opts.Predicate.Field = labels.Everything(), fields.Everything()
	if opts.Predicate.Continue == "" { // otherwise the version is in the token
		opts.ResourceVersion = strconv.FormatUint(version, 10)
		opts.ResourceVersionMatch = metav1.ResourceVersionMatchExact
	}
	list := s.config.NewList()
	if err := s.config.Storage.GetList(ctx, key, opts, list); err != nil {
		return "", err
	}
	of, err := meta.ListAccessor(list)
	if err != nil {
		return "", err
	}
	if got := of.GetResourceVersion(); got != strconv.FormatUint(version, 10) {
		return "", fmt.Errorf("the storage was listed at resourceVersion %d, and answered with %q", version, got)
	}
	// Each object on its own: an object would keep its page in memory.
	if err := meta.EachListItemWithAlloc(list, take); err != nil {
		return "", err
	}
	return of.GetContinue(), nil
}

// reportsWithin is how long a storage has to report the progress of a watch, unless its
// reports take long (Config.Within).
const reportsWithin = 2 * time.Second

// Reports reports whether the storage reports progress: to a watch that begins right
// before its current version, since an idle etcd does not answer one that begins at it.
func (s *Source) Reports(ctx context.Context) bool {
	at, ok := s.Version(ctx)
	if !ok || at < 2 {
		return false
	}
	reports, _ := s.probe(ctx, at-1, max(reportsWithin, 2*s.config.Within))
	return reports
}

// probe opens a second watch of the storage, after a version. It returns
// whether the storage reports the watch's progress in time, and whether the watch breaks.
func (s *Source) probe(ctx context.Context, after uint64, within time.Duration) (reports, breaks bool) {
	w, err := s.openBeside(ctx, metav1.ListOptions{ResourceVersion: strconv.FormatUint(after, 10)})
	if err != nil {
		return false, true
	}
	defer s.discard(w)
	ask := s.config.Clock.NewTicker(askHistoryEvery)
	defer ask.Stop()
	late := s.config.Clock.After(within)
	for {
		// etcd does not answer while an event is on its way. A failure is no reason to
		// give up: the watch may live without a report.
		_ = s.config.Storage.RequestWatchProgress(w.onStream(ctx))
		select {
		case event, open := <-w.ResultChan():
			if !open || event.Type == watch.Error || event.Type == watch.Bookmark {
				reports = open && event.Type == watch.Bookmark
				return reports, !reports
			}
		case <-ask.C():
		case <-late:
			return false, false
		case <-ctx.Done():
			return false, true
		}
	}
}
