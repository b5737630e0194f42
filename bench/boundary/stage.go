// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/kube-watchcache/watchcache/bench/boundary/form"
	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/integration/observe"
)

// patience bounds the start and the end of a process.
const patience = 2 * time.Minute

// Config says what a stage has.
type Config struct {
	// Program is the compiled server, see Compile.
	Program string
	// Objects is how many devices there are.
	Objects int
	// Flags are more flags for the servers with our cache.
	Flags []string
	// EmbeddedEtcd puts the etcd inside the servers. Only one of them may run at a
	// time then.
	EmbeddedEtcd bool
}

// Stage is an etcd with devices in it, and the servers over it. The methods of a
// Stage are for one goroutine at a time.
type Stage struct {
	config  Config
	dir     string
	etcd    *etcdserver.Server // nil if it is in the servers
	client  *clientv3.Client   // nil without etcd
	filled  map[form.Form]bool
	running []*Server
	// started counts the servers, each of which has a directory of its own; those
	// with an etcd inside share it.
	started int
}

// Open starts the etcd. The caller closes the stage.
func Open(ctx context.Context, config Config) (_ *Stage, err error) {
	dir, err := os.MkdirTemp("", "watchcache-bench-")
	if err != nil {
		return nil, err
	}
	s := &Stage{config: config, dir: dir, filled: map[form.Form]bool{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if config.EmbeddedEtcd {
		return s, s.fillEmbedded(ctx)
	}
	starting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if s.etcd, err = etcdserver.New(starting, etcdserver.Config{Mode: etcdserver.Process, Dir: dir}); err != nil {
		return nil, err
	}
	s.client, err = dial(s.etcd.Endpoints())
	return s, err
}

func dial(endpoints []string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: patience, Logger: zap.NewNop()})
}

// prefix is where the keys of a server begin.
func (s *Stage) prefix(f form.Form) string {
	if s.config.EmbeddedEtcd {
		return "/registry" // of whichever server runs
	}
	return "/" + string(f)
}

// Fill writes the devices of a server, unless they are there.
func (s *Stage) Fill(ctx context.Context, f form.Form) error {
	if s.filled[f] || s.config.EmbeddedEtcd {
		return nil
	}
	s.filled[f] = true
	return fill(ctx, s.client, s.prefix(f), s.config.Objects)
}

// fillEmbedded writes the devices into a data directory, which all servers of
// the stage run on.
func (s *Stage) fillEmbedded(ctx context.Context) error {
	server, err := s.Start(ctx, form.Shipped)
	if err != nil {
		return err
	}
	endpoints, err := os.ReadFile(filepath.Join(s.runDir(form.Shipped), form.EndpointsFile))
	if err != nil {
		return err
	}
	client, err := dial(strings.Split(string(endpoints), ","))
	if err != nil {
		return err
	}
	err = fill(ctx, client, s.prefix(form.Shipped), s.config.Objects)
	return errors.Join(err, client.Close(), server.Stop())
}

func (s *Stage) runDir(f form.Form) string {
	if s.config.EmbeddedEtcd {
		return filepath.Join(s.dir, "server")
	}
	return filepath.Join(s.dir, fmt.Sprintf("%s-%d", f, s.started))
}

// Start starts a server, over devices that are there before, and returns when
// the server is ready. The server ends with the stage, if it is not stopped
// before. Servers of one form have the same devices.
func (s *Stage) Start(ctx context.Context, f form.Form) (*Server, error) {
	if err := s.Fill(ctx, f); err != nil {
		return nil, err
	}
	s.started++
	flags := []string{"--form=" + string(f), "--etcd-prefix=" + s.prefix(f)}
	if s.etcd != nil {
		flags = append(flags, "--etcd-servers="+strings.Join(s.etcd.Endpoints(), ","))
	}
	if f != form.Shipped {
		flags = append(flags, s.config.Flags...)
	}
	starting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	child, err := observe.StartServer(starting, string(f), []string{s.config.Program}, nil, s.runDir(f), flags...)
	if err != nil {
		return nil, err
	}
	server := &Server{child: child}
	s.running = append(s.running, server)
	if err := server.awaitCache(starting); err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	return server, nil
}

// Close ends the servers and the etcd, and removes what they have written.
func (s *Stage) Close() error {
	// At once: a server takes a second to end in good order.
	var group errgroup.Group
	for _, server := range s.running {
		group.Go(server.Stop)
	}
	errs := []error{group.Wait()}
	if s.client != nil {
		errs = append(errs, s.client.Close())
	}
	if s.etcd != nil {
		errs = append(errs, s.etcd.Close())
	}
	if err := errors.Join(append(errs, os.RemoveAll(s.dir))...); err != nil {
		return fmt.Errorf("ending the servers: %w", err)
	}
	return nil
}
