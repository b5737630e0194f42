// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Server is the example API server as a child.
type Server struct {
	// URL is where it serves.
	URL string
	// Config is for its clients; it has no client-side limit.
	Config *rest.Config

	name string
	dir  string
	*process
}

// StartServer starts a standalone example server, whose command is given, with its
// run directory and more flags, and returns when it serves. The caller stops it.
func StartServer(ctx context.Context, name string, command, env []string, dir string, flags ...string) (*Server, error) {
	serving := make(chan struct{})
	announced := sync.OnceFunc(func() { close(serving) })
	args := append(append([]string{}, command...), "--standalone", "--secure-port=0", "--run-dir="+dir)
	p, err := launch("the server "+name, append(args, flags...), env, func(line string) {
		if strings.HasPrefix(line, "Serving ") {
			announced()
		}
	})
	if err != nil {
		return nil, err
	}
	s := &Server{name: name, dir: dir, process: p}
	if err := p.await(ctx, serving); err != nil {
		_ = s.Stop(ctx)
		return nil, err
	}
	s.Config, err = clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		_ = s.Stop(ctx)
		return nil, fmt.Errorf("the server %s: %w", name, err)
	}
	s.Config.QPS = -1
	s.URL = s.Config.Host
	return s, nil
}

// Target is the server for Prometheus, with the name of the server as its instance.
func (s *Server) Target() Target {
	pki := filepath.Join(s.dir, "pki")
	return Target{
		Instance: s.name, Address: strings.TrimPrefix(s.URL, "https://"),
		CA: filepath.Join(pki, "ca.crt"), Cert: filepath.Join(pki, "client.crt"), Key: filepath.Join(pki, "client.key"),
	}
}

// Stop ends the server and awaits its end; it is killed when ctx ends first.
func (s *Server) Stop(ctx context.Context) error { return s.stop(ctx) }

// Kill ends the server at once, as a machine that fails does.
func (s *Server) Kill() { s.kill() }

// PID is the process.
func (s *Server) PID() int { return s.cmd.Process.Pid }
