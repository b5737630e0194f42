// SPDX-License-Identifier: Apache-2.0

// Package apiserver runs the example API server as a process that tests may kill
// and start again.
package apiserver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/integration/internal/child"
	"github.com/kube-watchcache/watchcache/internal/race"
)

// Which cache a server has.
const (
	Ours    = "ours"
	Shipped = "shipped"
)

// patience bounds the wait for a server that starts.
const patience = time.Minute

// Program is the server, compiled when it is first needed.
type Program struct{ program *child.Program }

// NewProgram returns the server, to be compiled into dir, with the race detector
// if the tests have it. The environment variable WATCHCACHE_TESTSERVER_BINARY names
// one that is compiled already.
func NewProgram(dir string) Program {
	return Program{&child.Program{Variable: "WATCHCACHE_TESTSERVER_BINARY", Compile: func() (string, error) {
		path := filepath.Join(dir, "testserver")
		args := []string{"-o", path, "github.com/kube-watchcache/watchcache/integration/faults/testserver"}
		if race.Enabled {
			args = append([]string{"-race"}, args...)
		}
		return path, child.GoBuild("", nil, args...)
	}}}
}

// NewEarlierProgram returns the server of a commit, to be checked out and compiled in dir.
func NewEarlierProgram(dir, commit string) Program {
	return Program{&child.Program{Variable: "WATCHCACHE_EARLIERSERVER_BINARY", Compile: func() (path string, err error) {
		tree := filepath.Join(dir, "earlier")
		if out, err := exec.Command("git", "worktree", "add", "--detach", tree, commit).CombinedOutput(); err != nil {
			return "", fmt.Errorf("checking %q out: %w\n%s", commit, err, out)
		}
		defer func() {
			if out, failed := exec.Command("git", "worktree", "remove", "--force", tree).CombinedOutput(); failed != nil && err == nil {
				err = fmt.Errorf("removing %s: %w\n%s", tree, failed, out)
			}
		}()
		path = filepath.Join(dir, "earlierserver")
		return path, child.GoBuild(tree, nil, "-o", path, "./integration/faults/testserver")
	}}}
}

// Path compiles the server, once. Path takes as long as it takes, and is called
// before any deadline begins.
func (p Program) Path() (string, error) { return p.program.Path() }

// Process is the example server as a process, on one port and one run directory
// for as long as the test runs.
type Process struct {
	// Config says how clients get in.
	Config *rest.Config
	// Suspect: what the server logged is of interest, because it answered wrongly,
	// ended watches, or did not start. The log is printed when the test ends.
	Suspect bool

	path string
	args []string
	log  child.Tail
	cmd  *exec.Cmd
	// exited is closed by the goroutine that awaits the process, which Start
	// starts and the end of the process ends.
	exited chan struct{}
}

// Start starts a server with the cache on the etcd endpoints and returns when it
// serves. The server is killed with the test. flags are further ones.
func (p Program) Start(t testing.TB, cache string, endpoints []string, flags ...string) *Process {
	t.Helper()
	path, err := p.Path()
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "run")
	s := &Process{path: path, args: append([]string{
		cache, "--standalone", "--run-dir=" + dir, "--secure-port=0", "--etcd-servers=" + strings.Join(endpoints, ","),
		// History goes when the test says so.
		"--etcd-compaction-interval=0",
	}, flags...)}
	s.begin(t, cache)
	s.Config, err = clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	require.NoError(t, err)
	s.Config.QPS = -1 // no client-side limit
	// The server comes back where its clients look for it.
	s.args = append(s.args, "--secure-port="+s.Config.Host[strings.LastIndex(s.Config.Host, ":")+1:])
	return s
}

// StartAggregated starts a server with the cache on the etcd endpoints that asks
// the cluster of a kubeconfig who may do what, and returns when it serves. Config
// has no user. The server is killed with the test. flags are further ones.
func (p Program) StartAggregated(t testing.TB, cache string, endpoints []string, kubeconfig string, flags ...string) *Process {
	t.Helper()
	path, err := p.Path()
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0") // somebody else may take the port between the look and the use
	require.NoError(t, err)
	address := listener.Addr().(*net.TCPAddr)
	require.NoError(t, listener.Close())
	certificates := filepath.Join(t.TempDir(), "certificates")
	s := &Process{path: path, args: append([]string{
		cache, "--etcd-servers=" + strings.Join(endpoints, ","), "--etcd-compaction-interval=0",
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", address.Port), "--cert-dir=" + certificates,
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
	}, flags...)}
	s.Config = &rest.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", address.Port), QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(certificates, "apiserver.crt")},
	}
	s.begin(t, cache)
	return s
}

// begin starts the process, and has it killed with the test.
func (s *Process) begin(t testing.TB, cache string) {
	t.Helper()
	t.Cleanup(func() {
		s.Kill()
		if s.Suspect || t.Failed() {
			t.Logf("the end of the output of the server (%s):\n%s", cache, s.Log())
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.Suspect = true
	require.NoError(t, s.Start(ctx))
	s.Suspect = false
}

// Start starts the process, which does not run, and returns when it says that it
// serves.
func (s *Process) Start(ctx context.Context) error {
	cmd := exec.Command(s.path, s.args...)
	// A data race ends the server at once, and so the test.
	cmd.Env = append(os.Environ(), "GORACE=halt_on_error=1 exitcode=66")
	cmd.Stderr = &s.log
	cmd.SysProcAttr = child.Attributes()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	serving, exited := make(chan struct{}), make(chan struct{})
	s.cmd, s.exited = cmd, exited
	go func() {
		defer close(exited)
		announced := sync.OnceFunc(func() { close(serving) })
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "Serving ") {
				announced()
			}
		}
		_, _ = io.Copy(io.Discard, stdout)
		_ = cmd.Wait()
	}()
	select {
	case <-serving:
		return nil
	case <-exited:
		return fmt.Errorf("the server ended before it served:\n%s", s.Log())
	case <-ctx.Done():
		return fmt.Errorf("the server does not serve: %w\n%s", ctx.Err(), s.Log())
	}
}

// Alive reports whether the process runs.
func (s *Process) Alive() bool {
	select {
	case <-s.exited:
		return false
	default:
		return true
	}
}

// Kill ends the process at once and waits for its end.
func (s *Process) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	<-s.exited
}

// Interrupt ends the process as an operator does, and waits until it has ended.
func (s *Process) Interrupt(ctx context.Context) error {
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	select {
	case <-s.exited:
	case <-ctx.Done():
		return fmt.Errorf("the server does not end: %w\n%s", ctx.Err(), s.Log())
	}
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("the server ended with status %d:\n%s", code, s.Log())
	}
	return nil
}

// Log is the end of what the server has logged.
func (s *Process) Log() string { return s.log.String() }

// Connect gives an HTTP client with connections of its own, which end with the
// test.
func (s *Process) Connect(t testing.TB) *http.Client {
	t.Helper()
	return Connect(t, s.Config)
}

// Connect gives an HTTP client for config with connections of its own, which end
// with the test.
func Connect(t testing.TB, config *rest.Config) *http.Client {
	t.Helper()
	config = rest.CopyConfig(config)
	// Transports are shared by configurations with one dialer.
	config.Dial = (&net.Dialer{Timeout: 5 * time.Second}).DialContext
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(client.Transport) })
	return client
}

// Devices gives a typed client with connections of its own.
func (s *Process) Devices(t testing.TB) *versioned.Clientset {
	t.Helper()
	client, err := versioned.NewForConfigAndClient(s.Config, s.Connect(t))
	require.NoError(t, err)
	return client
}
