// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// inside runs etcd in the test's own process.
type inside struct {
	cfg    embedded.Config
	server *embedded.Server
}

func newEmbedded(endpoint string, cfg Config) (runner, string, error) {
	dir, err := os.MkdirTemp(cfg.Dir, "etcd-")
	if err != nil {
		return nil, "", err
	}
	return &inside{cfg: embedded.Config{
		Dir:           filepath.Join(dir, "data"),
		ClientURL:     endpoint,
		UnsafeNoFsync: !cfg.Sync,
	}}, "inside the process of the test", nil
}

func (i *inside) start(ctx context.Context) (<-chan struct{}, error) {
	server, err := embedded.Start(ctx, i.cfg)
	if err != nil {
		return nil, err
	}
	i.server = server
	return server.Done(), nil
}

func (i *inside) stop(context.Context) error {
	if i.server == nil {
		return nil
	}
	server := i.server
	i.server = nil
	return server.Close()
}

func (i *inside) pause(context.Context) error  { return fmt.Errorf("pause: %w", ErrUnsupported) }
func (i *inside) resume(context.Context) error { return fmt.Errorf("resume: %w", ErrUnsupported) }

func (i *inside) close(ctx context.Context) error {
	if err := i.stop(ctx); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Dir(i.cfg.Dir))
}

func (i *inside) output(context.Context) string { return "" }
