// SPDX-License-Identifier: Apache-2.0

package faults

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
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/integration/internal/child"
)

// Which cache a server has.
const (
	ours    = "ours"
	shipped = "shipped"
)

// serverBinary compiles the server, once, with the race detector if the tests
// have it. serverBinary is called before any deadline begins.
var serverBinary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(binaries, "testserver")
	args := []string{"-o", path, "./testserver"}
	if child.RaceDetector {
		args = append([]string{"-race"}, args...)
	}
	return path, child.GoBuild("", nil, args...)
})

// apiserver is the example server as a process, on one port and one run
// directory for as long as the test runs.
type apiserver struct {
	path   string
	args   []string
	config *rest.Config
	log    child.Tail
	// suspect: what it logged is of interest, because it answered wrongly, ended
	// watches, or did not start.
	suspect bool
	cmd     *exec.Cmd
	// exited is closed by the goroutine that awaits the process, which start
	// starts and the end of the process ends.
	exited chan struct{}
}

// startServer starts a server on the etcd endpoints and returns when it serves.
// The server is killed with the test.
func startServer(t *testing.T, cache string, endpoints []string) *apiserver {
	t.Helper()
	path, err := serverBinary()
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "run")
	s := &apiserver{path: path, args: []string{
		cache, "--standalone", "--run-dir=" + dir, "--secure-port=0", "--etcd-servers=" + strings.Join(endpoints, ","),
		// History goes when the test says so.
		"--etcd-compaction-interval=0",
	}}
	t.Cleanup(func() {
		s.kill()
		if s.suspect {
			t.Logf("the end of the output of the server (%s):\n%s", cache, &s.log)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s.suspect = true
	require.NoError(t, s.start(ctx))
	s.suspect = false
	s.config, err = clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	require.NoError(t, err)
	s.config.QPS = -1 // no client-side limit
	// The server comes back where its clients look for it.
	s.args = append(s.args, "--secure-port="+s.config.Host[strings.LastIndex(s.config.Host, ":")+1:])
	return s
}

// start starts the process and returns when it says that it serves.
func (s *apiserver) start(ctx context.Context) error {
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
		return fmt.Errorf("the server ended before it served:\n%s", &s.log)
	case <-ctx.Done():
		return fmt.Errorf("the server does not serve: %w\n%s", ctx.Err(), &s.log)
	}
}

// alive reports whether the process runs.
func (s *apiserver) alive() bool {
	select {
	case <-s.exited:
		return false
	default:
		return true
	}
}

func (s *apiserver) kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	<-s.exited
}

// connect gives an HTTP client with connections of its own, which end with the
// test.
func (s *apiserver) connect(t *testing.T) *http.Client {
	t.Helper()
	config := rest.CopyConfig(s.config)
	// Transports are shared by configurations with one dialer.
	config.Dial = (&net.Dialer{Timeout: 5 * time.Second}).DialContext
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// devices gives a typed client with connections of its own.
func (s *apiserver) devices(t *testing.T) *versioned.Clientset {
	t.Helper()
	client, err := versioned.NewForConfigAndClient(s.config, s.connect(t))
	require.NoError(t, err)
	return client
}
