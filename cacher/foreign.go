// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
)

// foreign returns the error for a watch that is to begin after a
// resourceVersion that the storage has not reached, nil if there is nothing
// wrong with rv. Such a version is of a history that is gone: the storage was
// restored from a backup, and the client was not there to be told. The watch
// would skip everything up to there, without a word. A client that is ahead of
// the cache is only late: the storage knows its version.
func (e *engine) foreign(ctx context.Context, rv uint64) error {
	if rv <= e.state.RV() || !e.watchProgress() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.config.FreshnessTimeout)
	defer cancel()
	current, err := e.currentVersion(ctx)
	if err != nil || rv <= current {
		return nil // a storage that is away can't tell
	}
	return foreignError(e.config.GroupResource, rv, current)
}
