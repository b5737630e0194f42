// SPDX-License-Identifier: Apache-2.0

package embedded

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

const (
	// startTimeout bounds a start whose context has no deadline. A server with the data directory
	// of a larger cluster never becomes ready.
	startTimeout = time.Minute
	// closeTimeout bounds Close. etcd itself allows requests in flight a little over five seconds.
	closeTimeout = 15 * time.Second
	// portTries is the number of free ports that Start tries.
	portTries = 10
)

// ErrAddressInUse is wrapped by Start's error if another server listens at ClientURL.
var ErrAddressInUse = errors.New("address already in use")

// Server is a running etcd. Safe for concurrent use. Close awaits all its goroutines.
type Server struct {
	etcd     *embed.Etcd
	dir      *dataDir
	endpoint string
	socket   *privateSocket // nil without a unix socket
	fatal    *fatal
	streams  *streams

	stopOnce sync.Once
	stop     chan struct{} // closed by the first Close
	done     chan struct{} // closed by watch when everything has ended
	err      error         // why it ended by itself; written before done is closed
}

// Start runs a server and returns when it answers. Its error is one line that names the problem:
// the field and its value, the data directory ([ErrDirInUse] if another server uses it), or the URL
// ([ErrAddressInUse] if taken). If ctx ends first, or after a minute if ctx has no deadline, the
// error wraps the context's. ctx has no effect after Start returns.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	s, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	return s.run(ctx)
}

func (s settings) run(ctx context.Context) (*Server, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("embedded etcd in %q: not started: %w", s.dir, err)
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, startTimeout)
		defer cancel()
	}
	dir, err := openDataDir(s.dir)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		srv, err := s.start(ctx, dir)
		if err == nil {
			return srv, nil
		}
		if again := wantsFreePort(s.client) && errors.Is(err, ErrAddressInUse); !again || try == portTries {
			return nil, err
		}
		if dir, err = openDataDir(s.dir); err != nil {
			return nil, err
		}
	}
}

// shutDown stops etcd in order, after the given steps, and closes the returned channel at the end.
// Call it only once.
func (srv *Server) shutDown(first ...func()) <-chan struct{} {
	ended := make(chan struct{})
	srv.streams.end()
	if srv.socket != nil {
		srv.socket.remove()
	}
	go func() {
		defer close(ended)
		for _, step := range first {
			step()
		}
		srv.etcd.Close()
	}()
	return ended
}

// watch waits for the server's end, whatever the cause, cleans up, and closes done.
func (srv *Server) watch() {
	defer close(srv.done)
	var errs []error
	if cause := srv.awaitEnd(); cause != nil {
		errs = append(errs, cause)
	}
	select {
	case <-srv.shutDown():
		srv.dir.release()
	case <-time.After(closeTimeout):
		// The directory stays locked, since something may still write to it.
		errs = append(errs, errNotStopped)
	}
	if len(errs) > 0 {
		srv.err = fmt.Errorf("embedded etcd in %q: %w", srv.dir.path, oneLine(errs))
	}
}

// awaitEnd waits for the server's end and returns its cause, nil after Close.
func (srv *Server) awaitEnd() error {
	var cause error
	select {
	case <-srv.stop:
		return nil
	case cause = <-srv.fatal.c:
		return cause
	case cause = <-srv.etcd.Err():
	case <-srv.etcd.Server.StopNotify():
	}
	select {
	case <-srv.stop: // Close was called first
		return nil
	case cause = <-srv.fatal.c:
		return cause
	default:
	}
	if cause == nil {
		cause = errors.New("the server stopped by itself")
	}
	return cause
}

// Endpoints returns the server's one client URL, in the form expected by etcd clients.
func (srv *Server) Endpoints() []string { return []string{srv.endpoint} }

// Close stops and awaits the server, and keeps the data. Clients' watches break as if the
// connection had. It returns within half a minute even if etcd hangs; the error then says so. Every
// call waits and returns the same result: nil, or the error of Err.
func (srv *Server) Close() error {
	srv.stopOnce.Do(func() { close(srv.stop) })
	<-srv.done
	return srv.err
}

// Done returns a channel closed when the server has ended, by itself or by Close.
func (srv *Server) Done() <-chan struct{} { return srv.done }

// Err returns the reason why the server ended by itself, or nil while it runs and after a
// successful Close.
func (srv *Server) Err() error {
	select {
	case <-srv.done:
		return srv.err
	default:
		return nil
	}
}
