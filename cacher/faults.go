// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
)

// faults are errors that are not logged where they happen: because a lock is held
// there, or because only those that last must be mended.
type faults struct {
	// failedIndex is the first failure of an indexer since everySecond has looked.
	failedIndex atomic.Pointer[error]
	// version and progress are those of requests to storage.
	version, progress streak
}

// index notes the failure of an indexer for the element with the key. The state's
// lock is held.
func (f *faults) index(name, key string, err error) {
	if f.failedIndex.Load() == nil {
		err = fmt.Errorf("the index %q of %q: %w", name, key, err)
		f.failedIndex.CompareAndSwap(nil, &err)
	}
}

// warnOfFaults logs what was noted under a lock. The dispatcher calls it once a
// second.
func (e *engine) warnOfFaults() {
	if err := e.faults.failedIndex.Swap(nil); err != nil {
		e.warn("index", "An index function has failed. The watch cache has the object under every value of the index: reads by it are right, and slower", *err,
			"look at this function of the resource's indexers, or at the object that it fails for")
	}
}

// streak is the time for which one kind of request has failed without a success.
type streak struct {
	since atomic.Int64 // on the timeline, in nanoseconds; 0: the last one succeeded
}

func (s *streak) end() {
	if s.since.Load() != 0 {
		s.since.Store(0)
	}
}

// failed notes a failure, and reports whether requests have failed for the timeout
// although storage was heard of in its second half.
func (s *streak) failed(c *contact) bool {
	now := int64(c.time.Now())
	s.since.CompareAndSwap(0, max(1, now))
	since := s.since.Load()
	return now-since >= int64(c.timeout) && c.heardAt.Load() > since+int64(c.timeout/2)
}

// versionFailed notes a version request that has failed.
func (e *engine) versionFailed(err error) {
	if errors.Is(err, context.Canceled) || !e.faults.version.failed(e.contact) {
		return
	}
	e.warn("version", "The storage answers, but does not tell its version. The watch cache can't serve consistent reads", err,
		"look at the permissions of the server's user in the storage, and at proxies before it, for reads of keys and transactions of reads")
}

// requestProgress asks storage for the progress of the cache's watch.
func (e *engine) requestProgress(ctx context.Context) error {
	err := e.source.RequestProgress(ctx)
	switch {
	case err == nil:
		e.faults.progress.end()
	case e.faults.progress.failed(e.contact):
		e.warn("progress", "The storage answers, but can't be asked for the progress of its watch. The watch cache serves consistent reads late, or has storage answer them", err,
			"look at the permissions of the server's user in the storage, and at proxies before it, for requests on the stream of a watch")
	}
	return err
}

// storageIsLost reports whether the log has said that storage does not answer.
func (e *engine) storageIsLost() bool {
	_, err := e.contact.lostSince()
	return err != nil
}
