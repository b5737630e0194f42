// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

const (
	// resumeMost is by how many resourceVersions a watch may lie behind the
	// storage to be resumed. For a watch that is resumed etcd reads all that was
	// written since, of every resource, again and again until the watch is level:
	// one that was half a million behind took nine tenths of its writes'
	// throughput. A list reads the one resource once. At the rates that one
	// etcd takes, 100,000 writes are tens of seconds to several minutes, after
	// which few windows reach back anyway.
	resumeMost = 100_000
	// resumeUnasked is for how long nothing may have come for the watch to be
	// resumed without asking how far the storage is.
	resumeUnasked = 10 * time.Second
)

// tooFarBehind returns an error if the storage is so far ahead of the stream that
// listing it again costs less than resuming. A storage that does not tell its
// version is asked to resume.
func (s *stream) tooFarBehind() error {
	at, err := strconv.ParseUint(s.resumeAt(), 10, 64)
	if err != nil || s.source.config.Clock.Since(s.broken) < resumeUnasked {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, answersPatience)
	defer cancel()
	storage, err := s.source.config.Storage.GetCurrentResourceVersion(ctx)
	if err != nil || storage <= at || storage-at <= resumeMost {
		return nil
	}
	return fmt.Errorf("the storage is at resourceVersion %d, %d ahead of the watch that broke at %d", storage, storage-at, at)
}
