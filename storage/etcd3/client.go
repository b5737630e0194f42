// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"k8s.io/component-base/tracing"
)

// reconnect replaces gRPC's defaults. Those pauses grow to two minutes, during which consistent
// reads would fail after etcd is back, and an attempt may take 20 s if the network drops packets.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second},
	MinConnectTimeout: 5 * time.Second,
}

// clientConfig translates c, which has its defaults, for the etcd client, reads the certificate
// files and registers the metrics. See reportProgress for trusts.
func (c Config) clientConfig(trusts func(member uint64) bool, watches *watchConnections) (clientv3.Config, error) {
	tlsConfig, err := c.tlsConfig()
	if err != nil {
		return clientv3.Config{}, err
	}
	options, err := metricsOptions(c.Metrics)
	if err != nil {
		return clientv3.Config{}, err
	}
	options = append(options, grpc.WithConnectParams(reconnect),
		grpc.WithChainStreamInterceptor(reportProgress(trusts), keepPreviousValues, watches.intercept),
		grpc.WithStatsHandler(otelgrpc.NewClientHandler(
			otelgrpc.WithMessageEvents(otelgrpc.ReceivedEvents, otelgrpc.SentEvents),
			otelgrpc.WithPropagators(tracing.Propagators()),
			otelgrpc.WithTracerProvider(c.TracerProvider),
		)))
	return clientv3.Config{
		Endpoints:            c.Endpoints,
		DialTimeout:          c.DialTimeout,
		DialKeepAliveTime:    c.KeepAliveTime,
		DialKeepAliveTimeout: c.KeepAliveTimeout,
		TLS:                  tlsConfig,
		Logger:               c.Logger.Named("etcd-client"),
		DialOptions:          append(options, c.DialOptions...),
	}, nil
}

// tlsConfig returns nil if no file is given: https endpoints then use the system's authorities.
// CertFile and KeyFile are reread for each handshake. We check TrustedCAFile first, since a failed
// handshake does not name it.
func (c Config) tlsConfig() (*tls.Config, error) {
	if !c.hasFiles() {
		return nil, nil
	}
	if c.TrustedCAFile != "" {
		pem, err := os.ReadFile(c.TrustedCAFile)
		if err == nil && !x509.NewCertPool().AppendCertsFromPEM(pem) {
			err = errors.New("holds no PEM certificate")
		}
		if err != nil {
			return nil, fmt.Errorf("etcd3: %w: TrustedCAFile: %q: %w", ErrTLS, c.TrustedCAFile, err)
		}
	}
	info := transport.TLSInfo{CertFile: c.CertFile, KeyFile: c.KeyFile, TrustedCAFile: c.TrustedCAFile}
	config, err := info.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("etcd3: %w: CertFile: %q, KeyFile: %q, TrustedCAFile: %q: %w", ErrTLS, c.CertFile, c.KeyFile, c.TrustedCAFile, err)
	}
	return config, nil
}

// metricsOptions returns options that count calls, each retry separately.
func metricsOptions(reg prometheus.Registerer) ([]grpc.DialOption, error) {
	if reg == nil {
		return nil, nil
	}
	metrics := grpcprom.NewClientMetrics()
	if err := reg.Register(metrics); err != nil {
		already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err)
		if !ok {
			return nil, fmt.Errorf("etcd3: Metrics: %w", err)
		}
		if metrics, ok = already.ExistingCollector.(*grpcprom.ClientMetrics); !ok {
			return nil, fmt.Errorf("etcd3: Metrics: grpc_client_* is already registered by a %T: %w", already.ExistingCollector, err)
		}
	}
	// Chained, so that the client's own interceptors, which retry, stay outermost.
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(metrics.UnaryClientInterceptor()),
		grpc.WithChainStreamInterceptor(metrics.StreamClientInterceptor()),
	}, nil
}
