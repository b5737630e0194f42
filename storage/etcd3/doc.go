// SPDX-License-Identifier: Apache-2.0

// Package etcd3 opens an etcd once and makes a [storage.Interface] for each
// resource in it, on top of k8s.io/apiserver/pkg/storage/etcd3. A watch cache
// lists and watches such a storage, and passes writes on to it.
//
// # Opening
//
//	backend, err := etcd3.Open(ctx, etcd3.Config{
//		Endpoints:     []string{"https://10.0.0.1:2379"},
//		TrustedCAFile: "ca.crt", CertFile: "client.crt", KeyFile: "client.key",
//	})
//	if err != nil {
//		return err // one line that names the endpoint, the file or the field
//	}
//	defer backend.Close()
//
// Open returns as soon as one etcd has answered, and gives up after
// Config.DialTimeout. An error is one line that says what to correct: no server
// answers at the endpoints ([ErrUnreachable]), the certificates do not fit
// ([ErrTLS]), or a field has a value that can't be used. An API server that has
// its storage settings in a storagebackend.Config gets the Config from
// [ConfigFrom].
//
// # One client, many resources
//
// All resources share one gRPC client, one compactor and one set of
// connections; the storage that ships with k8s.io/apiserver opens a client for each.
// Watches have connections of their own, so that no request waits behind them.
// [Backend.Storage] makes the storage of a resource, and [Backend.RawStorage] does so
// from a storagebackend.ConfigForResource, in the form that the cacher's
// WithRawStorage takes.
//
// # A watch stream for each store
//
// An etcd client puts watches on one gRPC stream if their outgoing gRPC
// metadata are equal, and a progress request reaches every watch on its stream.
// So each store sends metadata of its own, in place of the caller's: its watches share a
// stream with each other and with no other watch, and its RequestWatchProgress reaches
// only them.
//
// # Progress
//
// Whether progress notifications can be trusted depends on the version of the
// etcd server that sends them. [Backend.WatchProgress], which every store has
// too, returns true only when each endpoint that has ever answered runs a
// version that is new enough. All are asked again from time to time, because
// servers are replaced. While an endpoint has never answered, a watch gets
// answers to progress requests only from members that have reported a new
// enough version: a member that was down when the backend was opened may be an
// old one when it comes back. A server that reports no cluster is not etcd, and is not
// trusted: for example kine, whose progress may stay behind the last write. All of this
// is kept per backend; none of it is process-wide.
//
// # The end of a revision
//
// A revision can have several events: those of a transaction, or of a lease
// that expires. A watch that asked for progress notifications gets a bookmark
// right after the last event of a revision, or of the last of several revisions
// that came together. (These bookmarks count in k8s.io/apiserver's etcd_bookmark_total.)
//
// # Compaction
//
// With Config.CompactionInterval the backend compacts etcd's history, in turn
// with every other API server or backend that does so. CompactRevision of the stores
// returns the last compaction, of this backend or another, if the feature gate
// ListFromCacheSnapshot is on, as it is by default; a compaction that was
// not made by an API server or a Backend is not noticed.
//
// # Ending
//
// Stop the caches first; then Close the backend. Close ends and awaits every
// goroutine that the backend started, and ends the watches that are still open;
// the last events of such a watch may be missing.
//
// # Global state
//
// Feature gates are read in Open, but k8s.io/apiserver/pkg/storage/etcd3 reads
// some of its own later. That package also sends the gRPC library's log to klog for the
// whole process, and starts its own check for progress support, whose result this package
// does not use.
package etcd3
