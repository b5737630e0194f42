// SPDX-License-Identifier: Apache-2.0

// Package embedded runs a single-member etcd server inside the process, for
// development and for tests. Production talks to an etcd of its own through
// the package above, [github.com/kube-watchcache/watchcache/storage/etcd3].
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
// When Start returns, the server has elected itself leader and answers. The
// context bounds the start only; the end of the context does not end a running
// server. Without a ClientURL the server takes a free port on 127.0.0.1;
// "unix:///path/to.sock" makes it listen on a socket instead, and a fixed
// "http://127.0.0.1:2379" is possible too. There is no peer listener at all: a
// single member has no peers, so any number of servers run side by side. Only
// loopback addresses are accepted, because without TLS anyone who reaches the
// port may read and write.
//
// # The data directory
//
// The data stays in Dir over restarts, and one server at a time may use it. A
// second one, in this process or in another, is refused at once with
// [ErrDirInUse], even if the first one is an etcd that this package did not
// start. (etcd itself would wait for the lock without end.) A directory that
// can't be read or written, or whose database or write-ahead log is damaged, is
// refused before anything is changed in it. When Start fails, it removes the
// files and directories that it created, and leaves all others.
//
// # Ending
//
// Close ends the open watch streams, stops the server and releases port and
// directory. Close may be called many times, from several goroutines, and
// returns within half a minute even if etcd hangs. A server can also end by
// itself, for example when the disk is full: then the channel Done is closed,
// and Err returns the reason. etcd would end the whole process there; this
// package catches etcd's fatal errors and ends the server only.
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
// The server is silent unless Config.Logger is given. The gRPC library has one
// logger for the whole process, which this package leaves alone.
package embedded
