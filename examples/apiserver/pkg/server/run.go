// SPDX-License-Identifier: Apache-2.0

// Package server is the fleet API server: its flags, configuration and lifecycle.
package server

import (
	"context"
	"fmt"
	"io"

	"golang.org/x/sync/errgroup"

	"github.com/kube-watchcache/watchcache/devserver"
)

// Run serves until ctx ends, then returns nil, or until an error. It prints the address to out.
// Call it once, after Complete and Validate.
func (o *Options) Run(ctx context.Context, out io.Writer) error {
	if err := o.check(ctx); err != nil {
		return err
	}
	if !o.Standalone {
		return o.serve(ctx, nil, out)
	}
	return o.runStandalone(ctx, out)
}

func (o *Options) runStandalone(ctx context.Context, out io.Writer) (err error) {
	env, err := devserver.Open(ctx, devserver.Config{
		Dir:         o.RunDir,
		BindAddress: o.Recommended.SecureServing.BindAddress,
		Port:        o.Recommended.SecureServing.BindPort,
		Etcd:        len(o.etcdServers()) == 0,
	})
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := env.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("--run-dir %s: %w", o.RunDir, closeErr)
		}
	}()
	return o.serve(ctx, env, out)
}

// serve runs the server until ctx ends, the server fails, or the embedded etcd ends, and awaits all
// three.
func (o *Options) serve(ctx context.Context, env *devserver.Environment, out io.Writer) error {
	config, err := o.config(env)
	if err != nil {
		return err
	}
	generic, err := o.newServer(config)
	if err != nil {
		return err
	}
	if env != nil {
		return env.Serve(ctx, generic, o.announceStandalone(env, out))
	}
	prepared := generic.PrepareRun()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return prepared.RunWithContext(ctx) })
	group.Go(func() error { return announceDelegated(ctx, generic, out) })
	return group.Wait()
}
