// SPDX-License-Identifier: Apache-2.0

// Package capability has an interface for each method that a storage.Interface, or an
// object of its watches, may have beside its own, and that a cache makes use of:
//
//	var _ capability.HistoryKeeper = (*myStorage)(nil)
//
// A cache looks for them by type assertion on Config.Storage. A storage that wraps
// another one must pass them on.
package capability

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// ProgressReporter is a storage that knows whether it reports progress: whether it
// answers RequestWatchProgress reliably at this time. Consistent reads and streamed lists
// are served from a cache only while it does. A storage without the method reports none,
// unless it is k8s.io/apiserver's own for etcd.
type ProgressReporter interface {
	WatchProgress() bool
}

// SlowReporter is a ProgressReporter that takes its time. A cache waits for a report of
// progress as long as ReportsWithin says before it takes the watch for one that hangs.
type SlowReporter interface {
	ReportsWithin() time.Duration
}

// HistoryKeeper is a storage that can serve its history. If KeepsHistory returns true,
// watches from earlier versions, and lists at them, are complete or refused as expired.
// A cache that starts can then resume clients that another server has left behind.
type HistoryKeeper interface {
	KeepsHistory() bool
}

// VersionLister is a storage that can be compared with a cache without its objects
// being read.
type VersionLister interface {
	// Versions calls visit for each key under prefix as of exactly rv, in the order
	// of keys, with the resourceVersion of its last write. It fails as a LIST at
	// exactly rv would, and with visit's error.
	Versions(ctx context.Context, prefix string, rv uint64, visit func(key string, rv uint64) error) error
}

// KeyVersioner is a storage that can read the versions of single keys. With it, a GET
// without a resourceVersion waits for the writes of its own object only.
type KeyVersioner interface {
	// KeyVersions returns, from one linearizable read, the resourceVersion of the
	// last write of each key, 0 for a key that does not exist, and the current
	// resourceVersion of the storage.
	KeyVersions(ctx context.Context, keys []string) (versions []uint64, current uint64, err error)
}

// ConnectionChecker is a storage that can find out why it does not answer.
type ConnectionChecker interface {
	// CheckConnection tries a connection of its own, and returns why none can be made, in
	// one line without credentials; nil if one can, or if that is not known.
	CheckConnection(ctx context.Context) error
}

// ServerSharer is a storage of one of several resources on one server, whose outage is
// logged once. Server returns a comparable value that those storages have in common.
type ServerSharer interface {
	Server() any
}

// PathPrefixer is a storage that has a prefix before its keys. The NotFound of a cache names
// a key as such a storage does.
type PathPrefixer interface {
	PathPrefix() string
}

// EncryptedReader is a storage that can be given the cached object with an update. If
// ReadsEncrypted returns true, GuaranteedUpdate reads the stored object all the same
// where it is encrypted, so that no update succeeds if the key of that is lost.
type EncryptedReader interface {
	ReadsEncrypted() bool
}

// UnreadObject is the object of a storage's DELETED event whose last state can't be
// decrypted or decoded any more. A cache takes the last state from its own.
type UnreadObject interface {
	runtime.Object
	// LastState returns the key and the resourceVersion of the last state.
	LastState() (key string, rv uint64)
}
