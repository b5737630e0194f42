// SPDX-License-Identifier: Apache-2.0

package embedded

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
)

const (
	// A single member elects itself after one to two election timeouts, up to two seconds with
	// etcd's defaults. Without network delays, a tenth of them is enough.
	heartbeatMillis = 10
	electionMillis  = 100

	// fatalTimeout bounds the wait for StartEtcd, which may never return, after a fatal error on
	// another goroutine.
	fatalTimeout = time.Second
)

// memberURL is the peer address in the member's own record. Nothing listens there, but the URL must
// not change over restarts.
var memberURL = url.URL{Scheme: "http", Host: "127.0.0.1:0"}

// start makes one attempt to start a server. It owns dir.
func (s settings) start(ctx context.Context, dir *dataDir) (*Server, error) {
	client := s.client
	var socket *privateSocket
	var err error
	switch {
	case client.Scheme == "unix":
		if err = checkSocket(client.Path); err == nil {
			socket, err = makePrivateSocket(client.Path)
		}
	case wantsFreePort(client):
		client, err = s.pick(client)
	}
	if err != nil {
		dir.discard()
		return nil, fmt.Errorf("embedded etcd: ClientURL %q: %w", client.String(), err)
	}
	srv := &Server{
		dir:      dir,
		endpoint: client.String(),
		socket:   socket,
		fatal:    newFatal(),
		streams:  newStreams(),
		stop:     make(chan struct{}),
		done:     make(chan struct{}),
	}
	if err := srv.launch(ctx, s.etcdConfig(client, srv)); err != nil {
		return nil, fmt.Errorf("embedded etcd in %q: %w", s.dir, err)
	}
	go srv.watch()
	return srv, nil
}

func (s settings) etcdConfig(client url.URL, srv *Server) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Dir = s.dir
	cfg.ListenPeerUrls = nil
	cfg.AdvertisePeerUrls = []url.URL{memberURL}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ListenClientUrls = []url.URL{client}
	if srv.socket != nil {
		cfg.ListenClientUrls = []url.URL{srv.socket.listen()}
	}
	cfg.AdvertiseClientUrls = []url.URL{client}
	cfg.ClientTLSInfo.CertFile = s.CertFile
	cfg.ClientTLSInfo.KeyFile = s.KeyFile
	cfg.ClientTLSInfo.TrustedCAFile = s.TrustedCAFile
	cfg.ClientTLSInfo.ClientCertAuth = s.TrustedCAFile != ""
	cfg.QuotaBackendBytes = s.QuotaBytes
	cfg.UnsafeNoFsync = s.UnsafeNoFsync
	cfg.TickMs = heartbeatMillis
	cfg.ElectionMs = electionMillis
	cfg.EnableGRPCGateway = false
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(srv.fatal.logger(s.Logger))
	cfg.GRPCAdditionalServerOptions = []grpc.ServerOption{
		grpc.ChainStreamInterceptor(srv.streams.intercept),
	}
	return cfg
}

// launch starts etcd and waits until it is ready. On error, it stops etcd and releases the
// directory.
func (srv *Server) launch(ctx context.Context, cfg *embed.Config) error {
	started := srv.startEtcd(cfg)
	var result startResult
	var err error
	patience := closeTimeout
	select {
	case result = <-started:
		err = result.err
	case err = <-srv.fatal.c:
		patience = fatalTimeout
	case <-ctx.Done():
		err = fmt.Errorf("not ready: %w", ctx.Err())
	}
	if result.etcd == nil && result.err == nil {
		// Interrupted: StartEtcd can't be cancelled. Either it is about to return, or it waits
		// forever for the goroutine ended by fatal.
		select {
		case result = <-started:
		case <-time.After(patience):
			go srv.abandon(started)
			return err
		}
	}
	if result.etcd == nil {
		srv.dir.discard()
		if srv.socket != nil {
			srv.socket.discard()
		}
		return srv.startError(err)
	}
	srv.etcd = result.etcd
	if err == nil {
		err = srv.awaitReady(ctx)
	}
	if err == nil && srv.socket != nil {
		err = srv.socket.publish()
	}
	if err == nil {
		return nil
	}
	return oneLine(append([]error{err}, srv.abort()...))
}

type startResult struct {
	etcd *embed.Etcd
	err  error
}

// startEtcd runs StartEtcd, which takes no context, in a goroutine that ends when StartEtcd
// returns, or when fatal ends it. launch or abandon awaits it.
func (srv *Server) startEtcd(cfg *embed.Config) <-chan startResult {
	started := make(chan startResult, 1)
	go func() {
		result := startResult{err: errStartAborted}
		defer func() {
			if p := recover(); p != nil {
				result = startResult{err: fmt.Errorf("%v", p)}
			}
			started <- result
		}()
		etcd, err := embed.StartEtcd(cfg)
		result = startResult{etcd: etcd, err: err}
	}()
	return started
}

// errStartAborted is the result of a StartEtcd ended by fatal.
var errStartAborted = errors.New("etcd stopped while it was starting")

func (srv *Server) awaitReady(ctx context.Context) error {
	select {
	case <-srv.etcd.Server.ReadyNotify():
		return nil
	case err := <-srv.fatal.c:
		return err
	case err := <-srv.etcd.Err():
		return err
	case <-srv.etcd.Server.StopNotify():
		return errors.New("the server stopped while it was starting")
	case <-ctx.Done():
		return fmt.Errorf("not ready: %w", ctx.Err())
	}
}

func (srv *Server) startError(err error) error {
	if errors.Is(err, errStartAborted) {
		select {
		case err = <-srv.fatal.c:
		default:
		}
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("ClientURL %q: %w", srv.endpoint, ErrAddressInUse)
	}
	return err
}

// abort ends a server that did not become ready. It stops Raft first, because etcd's Close would
// wait until the server is ready.
func (srv *Server) abort() []error {
	select {
	case <-srv.shutDown(srv.etcd.Server.Stop):
	case <-time.After(closeTimeout):
		return []error{errNotStopped}
	}
	select {
	case <-srv.etcd.Server.ReadyNotify():
		srv.dir.release() // ready after all, so a client may have written
	default:
		srv.dir.discard()
	}
	return nil
}

var errNotStopped = fmt.Errorf("etcd did not stop within %v", closeTimeout)

// abandon awaits a StartEtcd, and closes its server. The data directory stays locked until then.
func (srv *Server) abandon(started <-chan startResult) {
	if result := <-started; result.etcd != nil {
		srv.etcd = result.etcd
		<-srv.shutDown(srv.etcd.Server.Stop)
	} else if srv.socket != nil {
		srv.socket.discard()
	}
	srv.dir.release()
}
