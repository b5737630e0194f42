// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapgrpc"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc/grpclog"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/internal/endpoints"
	"github.com/kube-watchcache/watchcache/internal/funcvalue"
	"github.com/kube-watchcache/watchcache/internal/klogzap"
	"github.com/kube-watchcache/watchcache/internal/shared"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// clientLog is the verbosity of the etcd client's own log.
const clientLog = 4

// pool opens one etcd3.Backend per set of etcd servers and closes it with its last storage.
type pool struct {
	backends shared.Map[poolKey, backend]
	// open is etcd3.Open, except in tests.
	open func(context.Context, etcd3.Config) (backend, error)
	// checks joins concurrent health checks.
	checks singleflight.Group
}

type backend interface {
	rawStorage(r decoration.Request) (storage.Interface, factory.DestroyFunc, error)
	Healthy(ctx context.Context) error
	Close() error
}

// poolKey identifies a shared backend: servers (see package endpoints), credentials, egress
// selector and compaction interval.
type poolKey struct {
	servers                   string
	certFile, keyFile, caFile string
	egress                    funcvalue.ID
	compaction                time.Duration
}

func newPool() *pool {
	return &pool{open: func(ctx context.Context, config etcd3.Config) (backend, error) {
		b, err := etcd3.Open(ctx, config)
		return etcdBackend{b}, err
	}}
}

type etcdBackend struct{ *etcd3.Backend }

func (b etcdBackend) rawStorage(r decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
	return decoration.Open(b.RawStorage, r)
}

func (p *pool) rawStorage(r decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
	config := r.Config
	if config.Type != storagebackend.StorageTypeUnset && config.Type != storagebackend.StorageTypeETCD3 {
		return nil, nil, fmt.Errorf("storage backend %q of %s: only %q is supported", config.Type, config.GroupResource, storagebackend.StorageTypeETCD3)
	}
	backend, release, err := p.backends.Use(keyOf(config), func() (backend, func(), error) { return p.connect(config) })
	if err != nil {
		return nil, nil, err
	}
	raw, destroy, err := backend.rawStorage(r)
	if err != nil {
		release()
		return nil, nil, err
	}
	return raw, sync.OnceFunc(func() {
		destroy()
		release()
	}), nil
}

func keyOf(config *storagebackend.ConfigForResource) poolKey {
	transport := config.Transport
	return poolKey{
		servers:    endpoints.Key(transport.ServerList),
		certFile:   transport.CertFile,
		keyFile:    transport.KeyFile,
		caFile:     transport.TrustedCAFile,
		egress:     funcvalue.Of(transport.EgressLookup),
		compaction: config.CompactionInterval,
	}
}

func (p *pool) connect(config *storagebackend.ConfigForResource) (backend, func(), error) {
	settings, err := etcd3.ConfigFrom(config.Config)
	if err != nil {
		return nil, nil, err
	}
	settings.Prefix = ""                           // each resource has its own
	settings.Metrics = legacyregistry.Registerer() // the registry in which the shipped storage also has grpc_client_*
	// The client logs each failed attempt of a request. The caches log the outcome.
	settings.Logger = klogzap.New(zap.WarnLevel, clientLog, "etcd-client")
	opened, err := p.open(context.Background(), settings)
	if err != nil {
		return nil, nil, err
	}
	return opened, func() {
		if err := opened.Close(); err != nil {
			klog.ErrorS(err, "An etcd client could not be closed. Its connections end with the process", "endpoints", settings.Endpoints)
		}
	}, nil
}

// grpcWarnings is the verbosity of gRPC warnings.
const grpcWarnings = 2

// QuietGRPC makes the gRPC library log warnings at -v=2 instead of -v=0, and nothing below
// warnings. gRPC warns of each attempt to connect, which buries the two lines that matter, namely
// that a cache lost its storage, and that it is back.
//
// Call QuietGRPC first in main, because gRPC's logger must be set before anything connects. Install
// does not call it, since the process may use gRPC elsewhere.
func QuietGRPC() {
	logger := klogzap.New(zap.ErrorLevel, grpcWarnings, "").Named("grpc").WithOptions(zap.IncreaseLevel(zap.WarnLevel))
	grpclog.SetLoggerV2(zapgrpc.NewLogger(logger))
}
