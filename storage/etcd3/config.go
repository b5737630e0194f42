// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/storage/storagebackend"
)

// The values of Config fields that are left zero.
const (
	DefaultDialTimeout      = 20 * time.Second
	DefaultKeepAliveTime    = 30 * time.Second
	DefaultKeepAliveTimeout = 10 * time.Second
	DefaultPrefix           = "/registry"
)

// minKeepAliveTime is gRPC's lower limit: it raises smaller values silently.
const minKeepAliveTime = 10 * time.Second

// Config configures the connection to an etcd cluster, and the backend. Only Endpoints is
// required.
type Config struct {
	// Endpoints are the members of one etcd cluster, one URL each:
	// "https://host:2379", "http://host:2379", "unix:///path/to.sock", or
	// "host:2379", which means TLS if a file below is given. Either all of them
	// use TLS, or none does.
	Endpoints []string

	// CertFile and KeyFile are the files of the client's certificate and key in
	// PEM. Set both or neither. The files are read again for each new connection,
	// so that they can be replaced while the backend is open.
	CertFile, KeyFile string

	// TrustedCAFile is the file, in PEM, of the authorities that sign the servers'
	// certificates. Empty means the system's. The file is read once, by Open.
	TrustedCAFile string

	// DialTimeout is how long Open waits for the first answer of an etcd. 0 means
	// DefaultDialTimeout.
	DialTimeout time.Duration

	// KeepAliveTime is how long a connection is idle before it is probed, at least
	// 10 s. 0 means DefaultKeepAliveTime. KeepAliveTimeout is how long the probe's
	// answer may take before the connection is closed. 0 means
	// DefaultKeepAliveTimeout.
	KeepAliveTime, KeepAliveTimeout time.Duration

	// Prefix comes before every key in etcd. Empty means DefaultPrefix.
	Prefix string

	// CompactionInterval is how often the backend compacts etcd's history, and how
	// much of the history each compaction keeps. 0 means never: then only the
	// compactions of others are observed.
	CompactionInterval time.Duration

	// Metrics receives the client's gRPC metrics (grpc_client_*). Nil means none.
	// If the registerer has these metrics already, from another backend or from
	// k8s.io/apiserver, both count in the same ones. The metrics stay registered
	// after Close.
	Metrics prometheus.Registerer

	// TracerProvider receives a span for each call. Nil means no spans; the trace
	// context of the callers is still passed on.
	TracerProvider trace.TracerProvider

	// Logger receives the etcd client's log and this package's. Nil means no log.
	Logger *zap.Logger

	// DialOptions are added to the client's own and override them, for example
	// with a dialer (grpc.WithContextDialer) for a network that is reached through
	// a proxy.
	DialOptions []grpc.DialOption
}

// Validate reports every field that can't be used, by name and value, in one
// line. Validate reads no files; Open does.
func (c Config) Validate() error {
	var errs []error
	if len(c.Endpoints) == 0 {
		errs = append(errs, fmt.Errorf("Endpoints: %q: at least one endpoint is needed", c.Endpoints))
	}
	errs = append(errs, c.checkEndpoints()...)
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs = append(errs, fmt.Errorf("CertFile: %q and KeyFile: %q must be given together", c.CertFile, c.KeyFile))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"DialTimeout", c.DialTimeout},
		{"KeepAliveTime", c.KeepAliveTime},
		{"KeepAliveTimeout", c.KeepAliveTimeout},
		{"CompactionInterval", c.CompactionInterval},
	} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("%s: %v: must not be negative", d.name, d.value))
		}
	}
	if c.KeepAliveTime > 0 && c.KeepAliveTime < minKeepAliveTime {
		errs = append(errs, fmt.Errorf("KeepAliveTime: %v is less than %v, the minimum of gRPC", c.KeepAliveTime, minKeepAliveTime))
	}
	if err := checkPrefix(c.Prefix); err != nil {
		errs = append(errs, fmt.Errorf("Prefix: %q: %w", c.Prefix, err))
	}
	if len(errs) > 0 {
		return fmt.Errorf("etcd3: %w", utilerrors.NewAggregate(errs))
	}
	return nil
}

// withDefaults fills in the fields that are zero.
func (c Config) withDefaults() Config {
	c.DialTimeout = cmp.Or(c.DialTimeout, DefaultDialTimeout)
	c.KeepAliveTime = cmp.Or(c.KeepAliveTime, DefaultKeepAliveTime)
	c.KeepAliveTimeout = cmp.Or(c.KeepAliveTimeout, DefaultKeepAliveTimeout)
	c.Prefix = cmp.Or(c.Prefix, DefaultPrefix)
	if c.TracerProvider == nil {
		c.TracerProvider = noop.NewTracerProvider()
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

// checkPrefix refuses a prefix that k8s.io/apiserver would change before use.
func checkPrefix(prefix string) error {
	trimmed := strings.Trim(prefix, "/")
	if trimmed != "" && path.Clean("/"+trimmed) != "/"+trimmed {
		return errors.New(`is not a path without empty, "." and ".." elements`)
	}
	return nil
}

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
		Prefix:             cmp.Or(c.Prefix, "/"),
		CompactionInterval: c.CompactionInterval,
		TracerProvider:     c.Transport.TracerProvider,
	}
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
