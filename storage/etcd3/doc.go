// SPDX-License-Identifier: Apache-2.0

// Package etcd3 connects to an etcd once and makes a [storage.Interface] for each resource in it,
// on top of k8s.io/apiserver/pkg/storage/etcd3. A watch cache lists and watches such a storage, and
// forwards writes to it.
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
// Open returns as soon as one etcd answers. Its error says what to correct: no server answers at
// the endpoints ([ErrUnreachable]), the certificates do not match ([ErrTLS]), or a field is
// invalid. [ConfigFrom] translates an API server's storagebackend.Config.
//
// # One client, many resources
//
// All resources share one gRPC client and one compactor; the storage shipped with k8s.io/apiserver
// opens a client for each. Watches have connections of their own, so that no request waits behind
// them. [Backend.Storage] makes the storage of a resource. [Backend.RawStorage] makes it from a
// storagebackend.ConfigForResource, for the cacher's WithRawStorage.
//
// # A watch stream for each store
//
// An etcd client puts watches with equal outgoing gRPC metadata on one gRPC stream, and a progress
// request reaches every watch on its stream. So each store replaces the caller's metadata by its
// own: its RequestWatchProgress reaches only its own watches.
//
// # Progress
//
// Whether progress notifications are correct depends on the etcd server's version.
// [Backend.WatchProgress], which every store has as well, returns true only if each endpoint that
// has ever answered runs a correct version. The backend rechecks them periodically, because servers
// are replaced. Until every endpoint has answered, a watch receives answers to progress requests
// only from members known to be correct. A server that reports no cluster is not etcd and never
// counts as correct, e.g. kine, whose progress may lag behind the last write.
//
// # The end of a revision
//
// A revision can have several events: those of a transaction, or of a lease that expires. A watch
// with progress notifications receives a bookmark right after the last event of a revision, or of
// several revisions received together. (These bookmarks count in k8s.io/apiserver's
// etcd_bookmark_total.)
//
// # Compaction
//
// With Config.CompactionInterval the backend compacts etcd's history, in turn with other API
// servers and backends. If the feature gate ListFromCacheSnapshot is on, the default,
// CompactRevision of the stores returns the last compaction by any of them, but not by others.
//
// # Ending
//
// Stop the caches before you close the backend. Close ends and awaits every goroutine of the
// backend, and ends open watches, whose last events may be missing.
//
// # Global state
//
// Open reads feature gates, but k8s.io/apiserver/pkg/storage/etcd3 reads some of its own later.
// That package also redirects the gRPC library's log to klog for the whole process, and starts its
// own check for progress support, whose result we don't use.
package etcd3
