// SPDX-License-Identifier: Apache-2.0

// Package etcd3 opens an etcd once and makes a [storage.Interface] for each
// resource in it, on top of k8s.io/apiserver/pkg/storage/etcd3. It is what a
// watch cache reads from and what writes go to.
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
// Open returns when an etcd has answered, and gives up after
// Config.DialTimeout. Its errors are meant for people: nobody answers at the
// endpoints ([ErrUnreachable]), the certificates don't fit ([ErrTLS]), or a
// field has a value that can't be used. An API server that has its storage
// settings in a storagebackend.Config gets the Config from [ConfigFrom].
//
// # One client, many resources
//
// All resources share one gRPC client, one compactor and one set of
// connections, however many there are; the storage that ships with
// k8s.io/apiserver opens a client for each.
//
//	store, err := backend.Storage(etcd3.ResourceConfig{
//		GroupResource:  schema.GroupResource{Group: "fleet.example.com", Resource: "devices"},
//		ResourcePrefix: "/fleet.example.com/devices",
//		Codec:          codec,
//		NewFunc:        func() runtime.Object { return &fleet.Device{} },
//		NewListFunc:    func() runtime.Object { return &fleet.DeviceList{} },
//	})
//
// [Backend.RawStorage] does the same from a storagebackend.ConfigForResource,
// in the form that the cacher's WithRawStorage takes.
//
// # A watch stream for each store
//
// An etcd client puts watches on one gRPC stream if their outgoing gRPC
// metadata are equal, and a request for progress reaches every watch on its
// stream. So each store sends metadata of its own: its watches share a stream
// with each other and with nothing else, and its RequestWatchProgress reaches
// them and nobody else. For this the store replaces the outgoing metadata of
// the context that it is given.
//
// # Progress
//
// Whether progress notifications can be trusted depends on the version of the
// etcd that answers. [Backend.WatchProgress], which every store has too, says
// what this backend's endpoints were found to be: true only when each one has
// answered and each one is new enough. It is false while an endpoint has never
// answered; it is asked again until it does, and all are asked again from time
// to time, because servers are replaced. A server that has no cluster is not
// etcd, whatever version it says, and is not believed: kine, whose progress
// reports may overtake events. Nothing of it is process-wide.
//
// # Compaction
//
// With Config.CompactionInterval the backend compacts etcd's history, in turn
// with all others who do, as API servers do. Without it the compactions of
// others are still observed. Both reach the stores' CompactRevision, under the
// ListFromCacheSnapshot feature gate, which is on by default; a compaction
// that was not made by an API server or a Backend is not seen.
//
// # Ending
//
// Stop what watches, the caches, first; then Close the backend. Close ends and
// awaits every goroutine that the backend started, and ends the watches that
// are still open; what such a watch delivers after that may be incomplete. A
// store can be closed before its backend: it has a Close method, which is also
// RawStorage's DestroyFunc.
//
// # What is global
//
// Feature gates are read in Open, but k8s.io/apiserver/pkg/storage/etcd3 reads
// some of its own where it uses them. That package also sends the gRPC
// library's log to klog for the whole process, and starts a check of its own
// for progress support, whose result nothing here uses.
package etcd3
