// SPDX-License-Identifier: Apache-2.0

// Package capability has an interface for each optional method of a storage.Interface, or of its
// watches' objects, used by a cache:
//
//	var _ capability.HistoryKeeper = (*myStorage)(nil)
//
// A cache finds them by type assertion on Config.Storage. A storage that wraps another must forward
// them.
package capability

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// ProgressReporter is a storage that knows whether it answers RequestWatchProgress reliably at this
// time. Only while it does can a cache serve consistent reads and streamed lists. A storage without
// the method does not, unless it is k8s.io/apiserver's own for etcd.
type ProgressReporter interface {
	WatchProgress() bool
}

// SlowReporter is a ProgressReporter that may take ReportsWithin to report progress. Before that, a
// cache does not treat a watch as hung.
type SlowReporter interface {
	ReportsWithin() time.Duration
}

// InProcess is a storage that answers without delay. A new cache over it has its state.
type InProcess interface {
	InProcess() bool
}

// HistoryKeeper is a storage that can serve its history. If KeepsHistory returns true, watches from
// and lists at earlier versions are complete or fail as expired, so that a new cache can resume
// another server's clients.
type HistoryKeeper interface {
	KeepsHistory() bool
}

// VersionLister is a storage that a cache can be compared with without reading objects.
type VersionLister interface {
	// Versions calls visit for each key under prefix as of exactly rv, in key order, with the
	// resourceVersion of its last write. It fails like a LIST at exactly rv, or with visit's error.
	Versions(ctx context.Context, prefix string, rv uint64, visit func(key string, rv uint64) error) error
}

// KeyVersioner is a storage that can read the versions of single keys, so that a GET without a
// resourceVersion waits only for the writes of its own object.
type KeyVersioner interface {
	// KeyVersions returns, from one linearizable read, the resourceVersion of each key's last
	// write, 0 for a missing key, and the storage's current resourceVersion.
	KeyVersions(ctx context.Context, keys []string) (versions []uint64, current uint64, err error)
}

// ConnectionChecker is a storage that can find out why it does not answer.
type ConnectionChecker interface {
	// CheckConnection tries a connection of its own. It returns why that fails, in one line without
	// credentials, or nil if it succeeds or the cause is unknown.
	CheckConnection(ctx context.Context) error
}

// ServerSharer is a storage of one of several resources on one server, whose outage is logged once.
// Server returns a comparable value shared by these storages.
type ServerSharer interface {
	Server() any
}

// PathPrefixer is a storage that puts a prefix before its keys. A cache's NotFound names keys with
// it.
type PathPrefixer interface {
	PathPrefix() string
}

// EncryptedReader is a storage whose updates can use the cached object. If ReadsEncrypted returns
// true, GuaranteedUpdate still reads an encrypted stored object, so that no update succeeds after
// its encryption key is lost.
type EncryptedReader interface {
	ReadsEncrypted() bool
}

// UnreadObject is the object of a storage's DELETED event whose last state can't be decrypted or
// decoded. A cache uses its own.
type UnreadObject interface {
	runtime.Object
	// LastState returns the last state's key and resourceVersion.
	LastState() (key string, rv uint64)
}
