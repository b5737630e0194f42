// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"k8s.io/component-base/tracing"
)

// clientConfig translates c, which has its defaults, for the etcd client. It
// reads the certificate files and registers the metrics.
func (c Config) clientConfig() (clientv3.Config, error) {
	tlsConfig, err := c.tlsConfig()
	if err != nil {
		return clientv3.Config{}, err
	}
	options, err := metricsOptions(c.Metrics)
	if err != nil {
		return clientv3.Config{}, err
	}
	options = append(options, grpc.WithChainStreamInterceptor(keepPreviousValues))
	options = append(options, grpc.WithStatsHandler(otelgrpc.NewClientHandler(
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

// tlsConfig returns nil if no file is given: https endpoints then use the
// system's authorities. The files are looked at one by one first, because the
// errors of the loading functions don't say which file they are about.
func (c Config) tlsConfig() (*tls.Config, error) {
	if _, file := c.firstFile(); file == "" {
		return nil, nil
	}
	if c.CertFile != "" {
		if _, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile); err != nil {
			return nil, fmt.Errorf("etcd3: %w: CertFile: %q, KeyFile: %q: %w", ErrTLS, c.CertFile, c.KeyFile, err)
		}
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
	// TLSInfo makes a configuration that reads CertFile and KeyFile anew for
	// each handshake.
	info := transport.TLSInfo{CertFile: c.CertFile, KeyFile: c.KeyFile, TrustedCAFile: c.TrustedCAFile}
	config, err := info.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("etcd3: %w: CertFile: %q, KeyFile: %q, TrustedCAFile: %q: %w", ErrTLS, c.CertFile, c.KeyFile, c.TrustedCAFile, err)
	}
	return config, nil
}

// metricsOptions counts the calls, each attempt of a retried one by itself.
func metricsOptions(reg prometheus.Registerer) ([]grpc.DialOption, error) {
	if reg == nil {
		return nil, nil
	}
	metrics := grpcprom.NewClientMetrics()
	if err := reg.Register(metrics); err != nil {
		var already prometheus.AlreadyRegisteredError
		if !errors.As(err, &already) {
			return nil, fmt.Errorf("etcd3: Metrics: %w", err)
		}
		shared, ok := already.ExistingCollector.(*grpcprom.ClientMetrics)
		if !ok {
			return nil, fmt.Errorf("etcd3: Metrics: grpc_client_* is taken by a %T: %w", already.ExistingCollector, err)
		}
		metrics = shared
	}
	// Chained: the client's own interceptors, which retry, stay in place and
	// come first.
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(metrics.UnaryClientInterceptor()),
		grpc.WithChainStreamInterceptor(metrics.StreamClientInterceptor()),
	}, nil
}
