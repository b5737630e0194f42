// SPDX-License-Identifier: Apache-2.0

// Package grpckeys contains the gRPC metadata keys by which a cache and storage/etcd3 choose the
// stream of a watch. etcd ignores them.
package grpckeys

const (
	// Caller requests a separate watch stream: watches with different values never share one. A
	// cache replaces a hanging watch by one on another stream, most likely to another member.
	Caller = "watchcache"
	// Stream is the key of the stream's name, set by storage/etcd3.
	Stream = "watchcache-stream"
)
