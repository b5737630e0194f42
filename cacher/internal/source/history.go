// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// This file reads earlier versions of the storage, past the Reflector and the watch that feeds the
// cache.

// requestProgressEvery is the interval between progress requests for a watch of the history. etcd
// ignores them while such a watch catches up.
const requestProgressEvery = 100 * time.Millisecond

// History calls take with each event after version from, up to version to, in order, and returns
// after the last one. The storage must report the progress of its watches. The error is the
// storage's, take's or ctx's; Expired matches a compacted version's.
func (s *Source) History(ctx context.Context, from, to uint64, take func(event watch.Event, version uint64) error) error {
	return s.watchBeside(ctx, from, nil, func(event watch.Event) (done bool, err error) {
		_, version, _ := versionOf(event)
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

var errTimeout = errors.New("the watch has not reached the version in time")

// watchBeside opens another storage watch after a version. It calls take with each event and
// progress report, which it requests periodically, until take is done, the watch breaks, or timeout
// fires (errTimeout).
func (s *Source) watchBeside(ctx context.Context, after uint64, timeout <-chan time.Time, take func(watch.Event) (done bool, err error)) error {
	w, err := s.openBeside(ctx, strconv.FormatUint(after, 10))
	if err != nil {
		return err
	}
	defer s.discard(w)
	// Ignore the error. The watch returns it, or needs no report.
	_ = s.config.Storage.RequestWatchProgress(w.onStream(ctx))
	ticker := s.config.Clock.NewTicker(requestProgressEvery)
	defer ticker.Stop()
	for {
		select {
		case event, open := <-w.ResultChan():
			if err := failureOf(event, open); err != nil {
				return err
			}
			if done, err := take(event); done {
				return err
			}
		case <-ticker.C():
			_ = s.config.Storage.RequestWatchProgress(w.onStream(ctx))
		case <-timeout:
			return errTimeout
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// StateAt calls take with all objects under key at a version, in pages of pageSize, or with the
// object at key if pageSize is 0.
func (s *Source) StateAt(ctx context.Context, key string, version uint64, pageSize int64, take func(runtime.Object) error) error {
	opts := storage.ListOptions{Recursive: pageSize > 0}
	opts.Predicate.Limit = pageSize
	for {
		_, next, err := s.listPage(ctx, key, version, opts, take)
		if err != nil || next == "" {
			return err
		}
		opts.Predicate.Continue = next
	}
}

// reportTimeout is the time within which a storage must report the progress of a watch, unless
// Config.ReportDelay is longer.
const reportTimeout = 2 * time.Second

// Reports reports whether storage reports progress. It watches from right before the storage's
// version, since an idle etcd sends no report to a watch that begins at it.
func (s *Source) Reports(ctx context.Context) bool {
	current, ok := s.Version(ctx)
	if !ok || current < 2 {
		return false
	}
	reports, _ := s.probe(ctx, current-1, max(reportTimeout, 2*s.config.ReportDelay))
	return reports
}

// probe opens another storage watch after a version. It returns whether storage reports its
// progress within the timeout, and whether it breaks.
func (s *Source) probe(ctx context.Context, after uint64, timeout time.Duration) (reports, breaks bool) {
	err := s.watchBeside(ctx, after, s.config.Clock.After(timeout), func(event watch.Event) (bool, error) {
		reports = event.Type == watch.Bookmark
		return reports, nil
	})
	return reports, err != nil && !errors.Is(err, errTimeout)
}
