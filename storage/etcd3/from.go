// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"fmt"

	"google.golang.org/grpc"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/storage/storagebackend"
)

// ConfigFrom translates the settings with which an API server describes its
// storage, the ones behind its --etcd-* flags: endpoints, files, prefix,
// compaction, tracing, and the egress selector as a dialer. An empty prefix
// there means no prefix at all, which is "/" in a Config.
func ConfigFrom(c storagebackend.Config) (Config, error) {
	if c.Type != storagebackend.StorageTypeUnset && c.Type != storagebackend.StorageTypeETCD3 {
		return Config{}, fmt.Errorf("etcd3: Type: %q is not %q", c.Type, storagebackend.StorageTypeETCD3)
	}
	cfg := Config{
		Endpoints:          c.Transport.ServerList,
		CertFile:           c.Transport.CertFile,
		KeyFile:            c.Transport.KeyFile,
		TrustedCAFile:      c.Transport.TrustedCAFile,
		Prefix:             c.Prefix,
		CompactionInterval: c.CompactionInterval,
		TracerProvider:     c.Transport.TracerProvider,
	}
	setDefault(&cfg.Prefix, "/")
	if c.Transport.EgressLookup == nil {
		return cfg, nil
	}
	dial, err := c.Transport.EgressLookup(egressselector.Etcd.AsNetworkContext())
	if err != nil {
		return Config{}, fmt.Errorf("etcd3: Transport.EgressLookup: %w", err)
	}
	if dial != nil {
		cfg.DialOptions = []grpc.DialOption{grpc.WithContextDialer(tcpDialer(dial))}
	}
	return cfg, nil
}
