// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// modes runs test in every mode that this machine has; a mode that it lacks is
// said, and is a failure where ETCD_MODE demands it.
func modes(t *testing.T, test func(t *testing.T, mode Mode)) {
	for _, mode := range []Mode{Container, Process, Embedded} {
		t.Run(string(mode), func(t *testing.T) {
			if mode == Container {
				if err := engineErr(t.Context()); err != nil {
					require.NotEqual(t, string(Container), os.Getenv(modeVariable), "no container engine: %v", err)
					t.Skipf("no container engine answers: %v", err)
				}
			}
			test(t, mode)
		})
	}
}

// dial gives a client that is closed with the test.
func dial(t *testing.T, s *Server) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: s.Endpoints(), DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// within gives a context for one request.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestDataOutlivesARestart(t *testing.T) {
	modes(t, func(t *testing.T, mode Mode) {
		s := Start(t, Config{Mode: mode})
		require.Equal(t, mode, s.Mode())
		c := dial(t, s)
		put, err := c.Put(within(t, 30*time.Second), "/key", "value")
		require.NoError(t, err)

		require.NoError(t, s.Stop(within(t, patience)))
		_, err = c.Get(within(t, time.Second), "/key")
		require.Error(t, err, "a stopped server answers")
		require.NoError(t, s.Stop(within(t, patience)), "stopping twice")

		before := s.Endpoints()
		require.NoError(t, s.Restart(within(t, patience)))
		require.Equal(t, before, s.Endpoints())
		got, err := c.Get(within(t, 30*time.Second), "/key")
		require.NoError(t, err)
		require.Len(t, got.Kvs, 1)
		require.Equal(t, "value", string(got.Kvs[0].Value))
		require.GreaterOrEqual(t, got.Header.Revision, put.Header.Revision)

		require.NoError(t, s.Restart(within(t, patience)), "restarting a server that runs")
		_, err = c.Get(within(t, 30*time.Second), "/key")
		require.NoError(t, err)
	})
}

func TestPause(t *testing.T) {
	modes(t, func(t *testing.T, mode Mode) {
		s := Start(t, Config{Mode: mode})
		if mode == Embedded {
			require.ErrorIs(t, s.Pause(t.Context()), errors.ErrUnsupported)
			require.ErrorIs(t, s.Resume(t.Context()), errors.ErrUnsupported)
			return
		}
		c := dial(t, s)
		_, err := c.Put(within(t, 30*time.Second), "/key", "value")
		require.NoError(t, err)

		require.NoError(t, s.Pause(t.Context()))
		_, err = c.Get(within(t, time.Second), "/key")
		require.Error(t, err, "a paused server answers")
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.Endpoints()[0], "http://"))
		require.NoError(t, err, "a paused server refuses connections")
		require.NoError(t, conn.Close())

		require.NoError(t, s.Resume(t.Context()))
		_, err = c.Get(within(t, 30*time.Second), "/key")
		require.NoError(t, err)

		require.NoError(t, s.Pause(t.Context()))
		require.NoError(t, s.Close(), "closing a paused server")
	})
}

func TestCloseLeavesNothing(t *testing.T) {
	modes(t, func(t *testing.T, mode Mode) {
		dir := t.TempDir()
		s := Start(t, Config{Mode: mode, Dir: dir})
		c := dial(t, s)
		_, err := c.Put(within(t, 30*time.Second), "/key", "value")
		require.NoError(t, err)
		if mode != Container {
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.NotEmpty(t, left, "the data is elsewhere")
		}
		require.NoError(t, s.Close())
		require.NoError(t, s.Close(), "closing twice")
		require.Error(t, s.Restart(t.Context()), "a closed server starts")
		require.NoError(t, s.Stop(t.Context()))

		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left)
		_, err = net.Dial("tcp", strings.TrimPrefix(s.Endpoints()[0], "http://"))
		require.Error(t, err, "somebody listens still")
		if mode == Container {
			ours, err := docker(t.Context(), "ps", "--all", "--quiet", "--filter", fmt.Sprintf("label=%s=%d", labelPID, os.Getpid()))
			require.NoError(t, err)
			require.Empty(t, ours)
		}
	})
}

func TestTwoServersAreApart(t *testing.T) {
	modes(t, func(t *testing.T, mode Mode) {
		dir := t.TempDir()
		one, two := Start(t, Config{Mode: mode, Dir: dir}), Start(t, Config{Mode: mode, Dir: dir})
		require.NotEqual(t, one.Endpoints(), two.Endpoints())
		_, err := dial(t, one).Put(within(t, 30*time.Second), "/key", "value")
		require.NoError(t, err)
		got, err := dial(t, two).Get(within(t, 30*time.Second), "/key")
		require.NoError(t, err)
		require.Empty(t, got.Kvs)
	})
}

// A run that died, here the process that has just ended, leaves a container;
// the next run removes it, and none of a run that lives.
func TestReap(t *testing.T) {
	if err := engineErr(t.Context()); err != nil {
		t.Skipf("no container engine answers: %v", err)
	}
	image, err := etcdImage()
	require.NoError(t, err)
	host, err := os.Hostname()
	require.NoError(t, err)
	dead := exec.Command("go", "version")
	require.NoError(t, dead.Run())

	create := func(host string, pid int) string {
		id, err := docker(t.Context(), "create", "--label", labelHost+"="+host, "--label", fmt.Sprintf("%s=%d", labelPID, pid), image, "etcd")
		require.NoError(t, err)
		t.Cleanup(func() { _, _ = docker(context.Background(), "rm", "--force", id) })
		return id
	}
	leftover, alive, elsewhere := create(host, dead.Process.Pid), create(host, os.Getpid()), create("another-host", dead.Process.Pid)

	require.NoError(t, reap(t.Context()))
	list, err := docker(t.Context(), "ps", "--all", "--quiet", "--no-trunc")
	require.NoError(t, err)
	require.NotContains(t, list, leftover)
	require.Contains(t, list, alive)
	require.Contains(t, list, elsewhere)
}

func TestChoose(t *testing.T) {
	env := func(kv ...string) func(string) string {
		return func(name string) string {
			for i := 0; i < len(kv); i += 2 {
				if kv[i] == name {
					return kv[i+1]
				}
			}
			return ""
		}
	}
	engine := engineErr
	t.Cleanup(func() { engineErr = engine })
	answers := func(context.Context) error { return nil }
	silent := func(context.Context) error { return errors.New("no such file") }
	for _, c := range []struct {
		name   string
		mode   Mode
		env    func(string) string
		engine func(context.Context) error
		want   Mode
		err    string
	}{
		{"the best", "", env(), answers, Container, ""},
		{"the second best", "", env(), silent, Process, ""},
		{"the variable", "", env(modeVariable, "embedded"), answers, Embedded, ""},
		{"the variable, process", "", env(modeVariable, "process"), answers, Process, ""},
		{"the field before the variable", Process, env(modeVariable, "embedded"), answers, Process, ""},
		{"an image", "", env(imageVariable, "etcd:any"), answers, Container, ""},
		{"a mode before an image", "", env(imageVariable, "etcd:any", modeVariable, "process"), answers, Process, ""},
		{"no container where it is demanded", "", env(modeVariable, "container"), silent, "", "ETCD_MODE demands a container, and no engine answers: no such file"},
		{"no container for the image", "", env(imageVariable, "etcd:any"), silent, "", "ETCD_IMAGE=etcd:any demands a container"},
		{"unknown", "", env(modeVariable, "cloud"), answers, "", `ETCD_MODE: unknown mode "cloud"`},
		{"unknown field", "cloud", env(), answers, "", `Config.Mode: unknown mode "cloud"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			engineErr = c.engine
			got, err := choose(t.Context(), c.mode, c.env)
			require.Equal(t, c.want, got)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
		})
	}
}

func TestFailuresAreSaid(t *testing.T) {
	t.Run("no folder", func(t *testing.T) {
		_, err := New(t.Context(), Config{Mode: Process})
		require.ErrorContains(t, err, "Config.Dir")
	})
	t.Run("the process ends at once", func(t *testing.T) {
		dir := t.TempDir()
		p, _, err := newProcess(t.Context(), 1, Config{Dir: dir})
		require.NoError(t, err)
		p.(*process).args = []string{"--no-such-flag"}
		s := &Server{mode: Process, endpoint: "http://127.0.0.1:1", runner: p}
		err = s.Restart(within(t, patience))
		require.ErrorContains(t, err, "ended before it was ready")
		require.ErrorContains(t, err, "no-such-flag")
		require.NoError(t, s.Close())
	})
	t.Run("an image that there is not", func(t *testing.T) {
		if err := engineErr(t.Context()); err != nil {
			t.Skipf("no container engine answers: %v", err)
		}
		t.Setenv(imageVariable, "localhost:1/no/such/image:none")
		_, err := New(within(t, patience), Config{Mode: Container, Dir: t.TempDir()})
		require.ErrorContains(t, err, "no/such/image")
	})
}

func TestOldBinariesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"etcd-a", "etcd-b", "etcd-new", "other"} {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		if name != "etcd-new" { // of another clone
			require.NoError(t, os.Chtimes(file, time.Time{}, time.Now().Add(-25*time.Hour)))
		}
	}
	removeOthers(dir, "etcd", "etcd-b")
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(dir, "etcd-b"), filepath.Join(dir, "etcd-new"), filepath.Join(dir, "other")}, left)
	require.Equal(t, "-mod=mod -v", withoutRace("-race -mod=mod -race=true -v"))
}
