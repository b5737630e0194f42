// SPDX-License-Identifier: Apache-2.0

// Package grpckeys has the keys of gRPC metadata by which a cache and storage/etcd3
// arrange on which stream a watch is. etcd ignores them.
package grpckeys

const (
	// Caller is the key by which a caller of a storage asks for a watch stream of
	// its own: watches with different values are never put on one stream. A cache
	// replaces a watch that hangs by one on another stream, most likely to another
	// member.
	Caller = "watchcache"
	// Stream is the key by which storage/etcd3 names the stream that it has chosen
	// for a watch.
	Stream = "watchcache-stream"
)
