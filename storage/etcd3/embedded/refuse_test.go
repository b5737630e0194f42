// SPDX-License-Identifier: Apache-2.0

package embedded_test

import (
	"context"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

func TestDirInUseByThisPackage(t *testing.T) {
	dir := t.TempDir()
	first := start(t, embedded.Config{Dir: dir})
	err := startError(t, embedded.Config{Dir: dir})
	require.ErrorIs(t, err, embedded.ErrDirInUse)
	require.Contains(t, err.Error(), dir)

	// The refused one did no harm, and the directory is free after the first.
	put(t, dial(t, first.Endpoints()...), "k", "v")
	require.NoError(t, first.Close())
	second := start(t, embedded.Config{Dir: dir})
	require.Equal(t, "v", get(t, dial(t, second.Endpoints()...), "k"))
}

// An etcd that takes no lock but its database's, as a separate process would.
func TestDirInUseByAnotherEtcd(t *testing.T) {
	dir := t.TempDir()
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.ListenPeerUrls = nil
	socket := url.URL{Scheme: "unix", Path: filepath.Join(t.TempDir(), "s")}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{socket}, []url.URL{socket}
	cfg.EnableGRPCGateway = false
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	other, err := embed.StartEtcd(cfg)
	require.NoError(t, err)
	<-other.Server.ReadyNotify()

	err = startError(t, embedded.Config{Dir: dir})
	require.ErrorIs(t, err, embedded.ErrDirInUse)
	require.Contains(t, err.Error(), dir)

	other.Close()
	start(t, embedded.Config{Dir: dir})
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	clientURL := "http://" + l.Addr().String()
	dir := filepath.Join(t.TempDir(), "a", "b")
	err = startError(t, embedded.Config{Dir: dir, ClientURL: clientURL})
	require.Contains(t, err.Error(), clientURL)
	require.ErrorIs(t, err, embedded.ErrAddressInUse)
	require.NoDirExists(t, filepath.Dir(dir))

	// Free again, the same call works: nothing was left behind.
	require.NoError(t, l.Close())
	srv := start(t, embedded.Config{Dir: dir, ClientURL: clientURL})
	require.Equal(t, []string{clientURL}, srv.Endpoints())
}

func TestSocketInUse(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(t.TempDir(), "s")
	cfg := embedded.Config{Dir: dir, ClientURL: "unix://" + socket}

	require.NoError(t, os.WriteFile(socket, []byte("mine"), 0o600))
	err := startError(t, cfg)
	require.Contains(t, err.Error(), socket)
	content, err := os.ReadFile(socket)
	require.NoError(t, err, "the file in the socket's place must survive")
	require.Equal(t, "mine", string(content))
	require.NoError(t, os.Remove(socket))

	first := start(t, cfg)
	err = startError(t, embedded.Config{Dir: t.TempDir(), ClientURL: cfg.ClientURL})
	require.Contains(t, err.Error(), socket)
	require.ErrorIs(t, err, embedded.ErrAddressInUse)
	put(t, dial(t, first.Endpoints()...), "k", "v") // still served
	require.NoError(t, first.Close())

	// A socket whose server is gone is no obstacle.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	start(t, cfg)
}

func TestUnusableDir(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	dirs := map[string]string{
		"a file in its place":  file,
		"a file in its parent": filepath.Join(file, "data"),
	}
	if os.Geteuid() == 0 {
		t.Log("not tried: a directory without permission (this runs as root, for whom there is none)")
	} else {
		closed := t.TempDir()
		require.NoError(t, os.Chmod(closed, 0))
		t.Cleanup(func() { _ = os.Chmod(closed, 0o700) })
		dirs["no permission"] = closed
		dirs["no permission in its parent"] = filepath.Join(closed, "data")
	}
	for name, dir := range dirs {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, startError(t, embedded.Config{Dir: dir}).Error(), dir)
		})
	}
}

// Damage for which etcd would end the process is refused, and the files are
// left as they are.
func TestDamagedDir(t *testing.T) {
	whole := t.TempDir()
	srv := start(t, embedded.Config{Dir: whole})
	put(t, dial(t, srv.Endpoints()...), "k", "v")
	require.NoError(t, srv.Close())
	const logName = "0000000000000000-0000000000000000.wal"

	for name, damage := range map[string]func(t *testing.T, db, log string){
		"database is garbage": func(t *testing.T, db, _ string) {
			require.NoError(t, os.WriteFile(db, make([]byte, 64<<10), 0o600))
		},
		"database is missing": func(t *testing.T, db, _ string) { require.NoError(t, os.Remove(db)) },
		"log is garbage": func(t *testing.T, _, log string) {
			f, err := os.OpenFile(log, os.O_WRONLY, 0)
			require.NoError(t, err)
			_, err = f.WriteAt([]byte("garbage, garbage, garbage"), 20)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		},
		"log has no beginning": func(t *testing.T, _, log string) {
			require.NoError(t, os.Rename(log, filepath.Join(filepath.Dir(log), "0000000000000000-0000000000000005.wal")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.CopyFS(dir, os.DirFS(whole)))
			damage(t, filepath.Join(dir, "member", "snap", "db"), filepath.Join(dir, "member", "wal", logName))
			before := contents(t, dir)
			err := startError(t, embedded.Config{Dir: dir})
			require.Contains(t, err.Error(), dir)
			require.NotErrorIs(t, err, embedded.ErrDirInUse)
			require.Equal(t, before, contents(t, dir))
		})
	}
}

// contents maps the files below dir to their content.
func contents(t *testing.T, dir string) map[string]string {
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		files[path] = string(b)
		return err
	}))
	return files
}

func TestContextEndsStart(t *testing.T) {
	// The moments at which the context ends, as lines of etcd's own log.
	for name, at := range map[string]string{
		"before it listens":    "configuring client listeners",
		"before it has data":   "starting an etcd server",
		"while it bootstraps":  "bootstrapping raft",
		"before it is elected": "starting etcd server",
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(testContext(t))
			defer cancel()
			reached := false
			lg := logHook(func(message string) {
				if message == at {
					reached = true
					cancel()
				}
			})
			dir := filepath.Join(t.TempDir(), "data")
			_, err := embedded.Start(ctx, embedded.Config{Dir: dir, Logger: lg})
			require.ErrorIs(t, err, context.Canceled)
			require.Contains(t, err.Error(), dir)
			require.NotContains(t, err.Error(), "\n")
			require.True(t, reached)
			if name != "before it is elected" { // it may be in time to get ready
				require.NoDirExists(t, dir)
			}
			start(t, embedded.Config{Dir: dir})
		})
	}
	t.Run("before Start", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		dir := filepath.Join(t.TempDir(), "data")
		_, err := embedded.Start(ctx, embedded.Config{Dir: dir})
		require.ErrorIs(t, err, context.Canceled)
		require.NoDirExists(t, dir)
	})
}

// logHook returns a logger that calls f with each message.
func logHook(f func(message string)) *zap.Logger {
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zapcore.EncoderConfig{}), zapcore.AddSync(discard{}), zap.InfoLevel)
	return zap.New(core, zap.Hooks(func(e zapcore.Entry) error {
		f(e.Message)
		return nil
	}))
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
