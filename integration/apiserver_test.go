// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-watchcache/watchcache/integration/internal/child"
	"github.com/kube-watchcache/watchcache/internal/race"
)

// root is the folder of the module, as the tests see it.
const root = ".."

// binaries is where the tests of this package build; TestMain makes and
// removes it.
var binaries string

// apiserverProgram is the example server, with the race detector if the tests
// have it.
var apiserverProgram = child.Program{
	Variable: "WATCHCACHE_APISERVER_BINARY",
	Compile: func() (string, error) {
		path := filepath.Join(binaries, "apiserver")
		args := []string{"-o", path, "./examples/apiserver"}
		if race.Enabled {
			args = append([]string{"-race"}, args...)
		}
		return path, child.GoBuild(root, nil, args...)
	},
}

// apiserver is the example server as a process.
type apiserver struct {
	url    string
	config *rest.Config
	cmd    *exec.Cmd
	log    child.Tail
	// shipped: its cache is the shipped one.
	shipped bool
	// exited is closed by the goroutine that awaits the process, which start
	// starts and the end of the process ends; err is the result.
	exited chan struct{}
	err    error
}

// startServer starts the example server on a run directory and returns when
// it says that it serves. The server is killed with the test, if it runs still.
func startServer(t *testing.T, runDir string, args ...string) *apiserver {
	t.Helper()
	s, serving := launch(t, append([]string{"--run-dir=" + runDir, "-v=1"}, args...)...)
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			t.Logf("the end of the server's output:\n%s", &s.log)
		}
	})
	select {
	case s.url = <-serving:
	case <-s.exited:
		require.FailNow(t, fmt.Sprintf("the server ended before it served: %v\n%s", s.err, &s.log))
	case <-time.After(patience):
		require.FailNow(t, fmt.Sprintf("the server does not serve after %s", patience))
	}
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(runDir, "kubeconfig"))
	require.NoError(t, err)
	require.Equal(t, s.url, config.Host, "the kubeconfig is for another server")
	config.QPS = -1 // no client-side limit
	s.config = config
	return s
}

// launch starts the server's process. The channel gets the URL on which it
// says that it serves.
func launch(t *testing.T, args ...string) (*apiserver, <-chan string) {
	t.Helper()
	path, err := apiserverProgram.Path()
	require.NoError(t, err)
	s := &apiserver{cmd: exec.Command(path, args...), exited: make(chan struct{}), shipped: slices.Contains(args, shipped)}
	// A data race ends the server at once, and so the test.
	s.cmd.Env = append(os.Environ(), "GORACE=halt_on_error=1 exitcode=66")
	s.cmd.Stderr = &s.log
	s.cmd.SysProcAttr = child.Attributes()
	stdout, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.cmd.Start())
	serving := make(chan string, 1)
	go func() {
		defer close(s.exited)
		s.read(stdout, serving)
		s.err = s.cmd.Wait()
	}()
	return s, serving
}

// read reads the standard output to its end and looks for the URL in it.
func (s *apiserver) read(stdout io.Reader, serving chan<- string) {
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		fmt.Fprintln(&s.log, lines.Text())
		if rest, ok := strings.CutPrefix(lines.Text(), "Serving fleet.example.com on "); ok {
			url, _, _ := strings.Cut(rest, ",")
			select {
			case serving <- url:
			default:
			}
		}
	}
}

// interrupt is Ctrl-C, after which nothing is logged as an error.
// interrupt returns the exit status.
func (s *apiserver) interrupt(t *testing.T) int {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(s.log.String()), "\n")
	require.NoError(t, s.cmd.Process.Signal(os.Interrupt))
	status := s.wait(t)
	// On a slow machine the traces of slow requests may leave no room for older lines.
	if _, after, found := strings.Cut(s.log.String(), lines[len(lines)-1]); found {
		require.NotRegexp(t, `(?m)^[EF]\d{4} `, after)
	}
	return status
}

// wait returns the exit status.
func (s *apiserver) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-s.exited:
	case <-time.After(patience):
		require.FailNow(t, fmt.Sprintf("the server does not end after %s\n%s", patience, &s.log))
	}
	var status *exec.ExitError
	if s.err != nil {
		require.True(t, errors.As(s.err, &status), s.err)
	}
	return s.cmd.ProcessState.ExitCode()
}

func (s *apiserver) kill() {
	_ = s.cmd.Process.Kill()
	<-s.exited
}

// port is the number of the port that the server listens on.
func (s *apiserver) port() string { return s.url[strings.LastIndex(s.url, ":")+1:] }

// client gives an HTTP client with the kubeconfig's certificate.
func (s *apiserver) client(t *testing.T) *http.Client {
	t.Helper()
	client, err := rest.HTTPClientFor(s.config)
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// within gives a context that ends with the test or when patience does.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}
