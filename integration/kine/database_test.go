// SPDX-License-Identifier: Apache-2.0

package kine

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/drivers/sqlite"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kube-watchcache/watchcache/integration/internal/child"
	"github.com/kube-watchcache/watchcache/internal/needs"
)

// database is where kine keeps what is stored.
type database interface {
	// empty returns kine's name for a new database. Files go to dir.
	empty(dir string) string
}

// onEach runs a test on each database.
func onEach(t *testing.T, test func(t *testing.T, db database)) {
	t.Run("SQLite", func(t *testing.T) { test(t, file{}) })
	t.Run("PostgreSQL", func(t *testing.T) {
		postgres.started(t)
		test(t, &postgres)
	})
}

// file is SQLite.
type file struct{}

func (file) empty(dir string) string {
	return "sqlite://" + filepath.Join(dir, "state.db") + "?" + sqlite.DefaultParams
}

// postgres is one server for all tests, on a Unix socket only. The first test that needs
// the server starts it, TestMain ends it.
var postgres postgresServer

// durable is for measurements.
var durable = flag.Bool("durable", false, "PostgreSQL waits for the disk, as in production")

type postgresServer struct {
	once      sync.Once
	dir       string
	err       error
	cmd       *exec.Cmd
	log       child.Tail
	databases atomic.Int64
}

// started starts the server unless it runs, and skips the test where none is installed.
func (s *postgresServer) started(t *testing.T) {
	t.Helper()
	installed, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // Debian's are not on the PATH
	require.NoError(t, err)
	initdb := needs.Program(t, "postgresql", append([]string{"initdb"}, installed...)...)
	s.once.Do(func() { s.err = s.run(initdb) })
	require.NoError(t, s.err, "%s", &s.log)
}

func (s *postgresServer) empty(string) string {
	return fmt.Sprintf("postgres://postgres@/kine%d?host=%s", s.databases.Add(1), s.dir)
}

// run starts the server as a user other than root, as it insists. A test's data need not
// survive the machine.
func (s *postgresServer) run(initdb string) error {
	initdb, err := filepath.EvalSymlinks(initdb)
	if err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "kine-postgres-"); err != nil {
		return err
	}
	as := child.Attributes()
	if os.Getuid() == 0 {
		if as, err = s.own(as); err != nil {
			return err
		}
	}
	data := filepath.Join(s.dir, "data")
	initialize := exec.Command(initdb, "--pgdata="+data, "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
	initialize.SysProcAttr, initialize.Stdout, initialize.Stderr, initialize.Dir = as, &s.log, &s.log, s.dir
	if err := initialize.Run(); err != nil {
		return fmt.Errorf("%s: %w", initialize, err)
	}
	s.cmd = exec.Command(filepath.Join(filepath.Dir(initdb), "postgres"), "-D", data, "-k", s.dir,
		"-c", "listen_addresses=", "-c", "max_connections=500", "-c", fmt.Sprintf("fsync=%t", *durable))
	s.cmd.SysProcAttr, s.cmd.Stdout, s.cmd.Stderr, s.cmd.Dir = as, &s.log, &s.log, s.dir
	if err := s.cmd.Start(); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(context.Background(), 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		status, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
		return err == nil && bytes.Contains(status, []byte("ready")), nil
	})
}

// own gives dir to Debian's user for it, or to nobody.
func (s *postgresServer) own(as *syscall.SysProcAttr) (*syscall.SysProcAttr, error) {
	account, err := user.Lookup("postgres")
	if err != nil {
		if account, err = user.Lookup("nobody"); err != nil {
			return nil, err
		}
	}
	uid, err := strconv.Atoi(account.Uid)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.Atoi(account.Gid)
	if err != nil {
		return nil, err
	}
	as.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return as, os.Chown(s.dir, uid, gid)
}

// stop ends the server at once, if it was started.
func (s *postgresServer) stop() {
	if s.cmd != nil && s.cmd.Process != nil {
		_ = s.cmd.Process.Signal(syscall.SIGQUIT)
		_ = s.cmd.Wait()
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}
