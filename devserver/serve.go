// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// Serve runs generic, which was made of a config that Apply was called for, until
// ctx ends, generic can't go on, or the etcd inside the process ends by itself; an
// etcd that has ended is an error. Serve returns after all that it started has
// ended. Close the environment afterwards.
//
// Once /readyz says ok, Serve writes the kubeconfig, so that a client that sees
// the file can connect, and calls ready with its name. An error of ready ends the
// server.
func (e *Environment) Serve(ctx context.Context, generic *genericapiserver.GenericAPIServer, ready func(kubeconfig string) error) error {
	prepared := generic.PrepareRun()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return prepared.RunWithContext(ctx) })
	group.Go(func() error { return e.watchEtcd(ctx) })
	group.Go(func() error {
		if err := WaitReady(ctx, generic, e.ClientConfig()); ctx.Err() != nil {
			return nil // whatever it says: the server is to end
		} else if err != nil {
			return err
		}
		kubeconfig, err := e.writeKubeconfig()
		if err != nil {
			return err
		}
		return ready(kubeconfig)
	})
	return group.Wait()
}

// watchEtcd returns nil when ctx ends, and an error as soon as the etcd inside the
// process ends by itself.
func (e *Environment) watchEtcd(ctx context.Context) error {
	if e.etcd == nil {
		return nil
	}
	select {
	case <-ctx.Done():
		return nil
	case <-e.etcd.Done():
		return fmt.Errorf("--run-dir %s: etcd has ended: %w", e.dir, e.etcd.Err())
	}
}
