// SPDX-License-Identifier: Apache-2.0

package kine

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/integration/internal/child"
)

// patience bounds the wait for anything that is sure to happen.
const patience = 3 * time.Minute

// binaries is where what is compiled goes. The folder is removed after the
// tests.
var binaries string

// program is kine, of which the greater part is SQLite in C. The program is a
// module of its own: kine's packages don't compile beside etcd's of version
// 3.7, which the cache's client is made of. TestMain compiles it, before any
// test's clock runs.
var program = child.Program{
	Variable: "WATCHCACHE_KINE_BINARY",
	Compile: func() (string, error) {
		path := filepath.Join(binaries, "kine")
		return path, child.GoBuild("server", []string{"GOFLAGS=", "GOWORK=off"}, "-o", path, ".")
	},
}

// process is a kine that a test can kill and start again, on the same file and
// socket. The goroutine that waits for its end is started by start and awaited
// by kill.
type process struct {
	args   []string
	socket string
	log    child.Tail
	cmd    *exec.Cmd
	exited chan struct{}
}

// startKine starts a kine on an empty SQLite file. The process is killed when
// the test ends.
func startKine(t *testing.T, args ...string) *process {
	t.Helper()
	path, err := program.Path()
	require.NoError(t, err)
	// A socket's path must be short, t.TempDir's has the name of the test.
	dir, err := os.MkdirTemp("", "kine-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	p := &process{socket: filepath.Join(dir, "kine.sock")}
	p.args = append([]string{path, "-socket", p.socket, "-data", filepath.Join(dir, "state.db")}, args...)
	p.start(t)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("kine said:\n%s", p.log.String())
		}
	})
	return p
}

// endpoint is what etcd's client connects to.
func (p *process) endpoint() string { return "unix://" + p.socket }

// start starts kine. Open a client to wait until it serves.
func (p *process) start(t *testing.T) {
	t.Helper()
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.Stdout, cmd.Stderr = &p.log, &p.log
	cmd.SysProcAttr = child.Attributes()
	require.NoError(t, cmd.Start())
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait()
	}()
	p.cmd, p.exited = cmd, exited
}

// kill ends kine at once, in whatever it is doing.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}
