// SPDX-License-Identifier: Apache-2.0

// Package embedded runs a single-member etcd server inside the process, for development and tests.
// In production, use a separate etcd through the package above,
// [github.com/kube-watchcache/watchcache/storage/etcd3].
//
// # Starting
//
//	srv, err := embedded.Start(ctx, embedded.Config{Dir: ".run/etcd"})
//	if err != nil {
//		return err // one line that names the directory, the URL or the field
//	}
//	defer srv.Close()
//	backend, err := etcd3.Open(ctx, etcd3.Config{Endpoints: srv.Endpoints()})
//
// When Start returns, the server answers. The context bounds only the start. By default the server
// takes a free port on 127.0.0.1. Any number of servers run side by side, since without peers there
// is no peer listener. Only loopback addresses and unix sockets are accepted, because without TLS
// anyone who reaches the port may read and write.
//
// # The data directory
//
// The data stays in Dir over restarts, and one server at a time may use it. Start fails at once
// with [ErrDirInUse] if another server does, even in another process. (etcd itself would wait for
// the lock without end.) Start also fails, before it changes anything, if the directory can't be
// read or written, or if its database or write-ahead log is damaged. A failed Start removes the
// files and directories that it created, and no others.
//
// # Ending
//
// Close ends the open watch streams, stops the server and releases port and directory. A server can
// also end by itself, e.g. when the disk is full: then the channel Done is closed, and Err returns
// the reason. etcd would end the whole process; this package catches etcd's fatal errors and ends
// only the server.
//
//	select {
//	case <-srv.Done():
//		return srv.Err() // nil after Close
//	case <-ctx.Done():
//		return srv.Close()
//	}
//
// # Logging
//
// The server is silent without Config.Logger. We leave the gRPC library's process-wide logger
// alone.
package embedded
