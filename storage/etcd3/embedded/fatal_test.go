// SPDX-License-Identifier: Apache-2.0

package embedded

import (
	"context"
	"errors"
	"net"
	"net/url"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// etcd ends the process when it can't go on; here only the server ends.
func TestFatalErrorEndsTheServer(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), ClientURL: "unix://" + filepath.Join(t.TempDir(), "s")}
	for name, log := range map[string]func(*zap.Logger, string, ...zap.Field){
		"Fatal": (*zap.Logger).Fatal,
		"Panic": (*zap.Logger).Panic,
	} {
		t.Run(name, func(t *testing.T) {
			srv, err := Start(context.Background(), cfg)
			require.NoError(t, err)
			// As on one of etcd's goroutines.
			go log(srv.etcd.GetLogger(), "failed to save", zap.Error(syscall.ENOSPC))
			<-srv.Done()
			require.ErrorIs(t, srv.Err(), syscall.ENOSPC)
			require.Contains(t, srv.Err().Error(), cfg.Dir)
			require.Contains(t, srv.Err().Error(), "failed to save")
			require.Equal(t, srv.Err(), srv.Close())
		})
	}
	// Directory and socket are free.
	srv, err := Start(context.Background(), cfg)
	require.NoError(t, err)
	require.NoError(t, srv.Close())
}

func TestServerThatStopsByItself(t *testing.T) {
	for name, end := range map[string]func(*Server){
		"raft":     func(s *Server) { s.etcd.Server.Stop() },
		"listener": func(s *Server) { _ = s.etcd.Clients[0].Close() },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			srv, err := Start(context.Background(), Config{Dir: dir})
			require.NoError(t, err)
			end(srv)
			<-srv.Done()
			require.Error(t, srv.Err())
			require.Contains(t, srv.Err().Error(), dir)
			require.Equal(t, srv.Err(), srv.Close())
		})
	}
}

// Fatal errors while etcd starts become Start's error.
func TestFatalErrorDuringStart(t *testing.T) {
	boom := errors.New("boom")
	for name, act := range map[string]func(*zap.Logger){
		"fatal":  func(lg *zap.Logger) { lg.Fatal("cannot go on", zap.Error(boom)) },
		"panic":  func(*zap.Logger) { panic("boom") },
		"goexit": func(*zap.Logger) { runtime.Goexit() },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			s, err := Config{Dir: dir}.resolve()
			require.NoError(t, err)
			d, err := openDataDir(dir)
			require.NoError(t, err)
			srv := &Server{dir: d, fatal: newFatal(), streams: newStreams()}
			etcdConfig := s.etcdConfig(url.URL{Scheme: "http", Host: "127.0.0.1:0"}, srv)
			core := zapcore.NewCore(zapcore.NewJSONEncoder(zapcore.EncoderConfig{}), zapcore.AddSync(nothing{}), zap.InfoLevel)
			var lg *zap.Logger
			lg = srv.fatal.logger(zap.New(core, zap.Hooks(func(e zapcore.Entry) error {
				// Before etcd has opened anything: nobody could close the files that
				// etcd has open when it gives up.
				if e.Message == "configuring client listeners" {
					act(lg)
				}
				return nil
			})))
			etcdConfig.ZapLoggerBuilder = embed.NewZapLoggerBuilder(lg)
			err = srv.launch(context.Background(), etcdConfig)
			require.Error(t, err)
			if name == "fatal" {
				require.ErrorIs(t, err, boom)
			}
			require.NoDirExists(t, dir)
		})
	}
}

// A free port that someone else takes first costs another try, not an error.
func TestFreePortTakenMeanwhile(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	s, err := Config{Dir: filepath.Join(t.TempDir(), "data")}.resolve()
	require.NoError(t, err)
	tries := 0
	s.pick = func(u url.URL) (url.URL, error) {
		if tries++; tries < 3 {
			u.Host = l.Addr().String()
			return u, nil
		}
		return freePort(u)
	}
	srv, err := s.run(context.Background())
	require.NoError(t, err)
	require.NoError(t, srv.Close())
	require.Equal(t, 3, tries)

	// If it happens each time, Start fails, and nothing is left.
	tries = -1000
	s.dir = filepath.Join(t.TempDir(), "other")
	_, err = s.run(context.Background())
	require.ErrorIs(t, err, ErrAddressInUse)
	require.NoDirExists(t, s.dir)
}

func TestNoFsyncReachesEtcd(t *testing.T) {
	for _, unsafe := range []bool{false, true} {
		s, err := Config{Dir: t.TempDir(), UnsafeNoFsync: unsafe}.resolve()
		require.NoError(t, err)
		cfg := s.etcdConfig(url.URL{}, &Server{fatal: newFatal(), streams: newStreams()})
		require.Equal(t, unsafe, cfg.UnsafeNoFsync)
	}
}

type nothing struct{}

func (nothing) Write(p []byte) (int, error) { return len(p), nil }
