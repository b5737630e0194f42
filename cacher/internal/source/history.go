// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	return s.watchBeside(ctx, from, nil, func(event watch.Event) (done bool, err error) {
		_, version, _, _ := versionOf(event)
		switch {
		case version == 0:
			return true, errors.New("an event of the storage's history has no resourceVersion")
		case version > to, version == to && event.Type == watch.Bookmark:
			return true, nil
		case event.Type == watch.Bookmark:
			return false, nil
		}
		err = take(event, version)
		return err != nil, err
	})
}

// errTimeout is returned by watchBeside when its time is over.
var errTimeout = errors.New("the watch has not come far enough in time")

// watchBeside watches the storage after a version, beside the watch that feeds the cache. It
// calls take with each event and report of progress until take is done, the watch breaks, or
// a value comes from late. It requests reports of progress now and then.
func (s *Source) watchBeside(ctx context.Context, after uint64, timeout <-chan time.Time, take func(watch.Event) (done bool, err error)) error {
	w, err := s.openBeside(ctx, metav1.ListOptions{ResourceVersion: strconv.FormatUint(after, 10)})
	if err != nil {
		return err
	}
	defer s.discard(w)
	ask := s.config.Clock.NewTicker(askHistoryEvery)
	defer ask.Stop()
	for asking := true; ; {
		if asking {
			// A failure is no reason to give up: the watch returns the error, or may live
			// without a report.
			_ = s.config.Storage.RequestWatchProgress(w.onStream(ctx))
		}
		asking = false
		select {
		case event, open := <-w.ResultChan():
			if !open {
				event = ended
			}
			if event.Type == watch.Error {
				return apierrors.FromObject(event.Object)
			}
			if done, err := take(event); done {
				return err
			}
		case <-ask.C():
			asking = true
		case <-timeout:
			return errTimeout
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// StateAt calls take with the objects that the storage had at a version: all under key, in
// pages of page objects, or with a page of 0 the object at key.
func (s *Source) StateAt(ctx context.Context, key string, version uint64, page int64, take func(runtime.Object) error) error {
	opts := storage.ListOptions{Recursive: page > 0}
	opts.Predicate.Limit = page
	for {
		_, next, err := s.listPage(ctx, key, version, opts, take)
		if err != nil || next == "" {
			return err
		}
		opts.Predicate.Continue = next
	}
}

// reportsWithin is how long a storage has to report the progress of a watch, unless its
// reports take long (Config.ReportDelay).
const reportsWithin = 2 * time.Second

// Reports reports whether the storage reports progress: to a watch that begins right
// before its current version, since an idle etcd does not answer one that begins at it.
func (s *Source) Reports(ctx context.Context) bool {
	at, ok := s.Version(ctx)
	if !ok || at < 2 {
		return false
	}
	reports, _ := s.probe(ctx, at-1, max(reportsWithin, 2*s.config.ReportDelay))
	return reports
}

// probe opens a second watch of the storage, after a version. It returns
// whether the storage reports the watch's progress in time, and whether the watch breaks.
func (s *Source) probe(ctx context.Context, after uint64, within time.Duration) (reports, breaks bool) {
	err := s.watchBeside(ctx, after, s.config.Clock.After(within), func(event watch.Event) (bool, error) {
		reports = event.Type == watch.Bookmark
		return reports, nil
	})
	return reports, err != nil && err != errTimeout
}
