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

// Defaults of Config fields.
const (
	DefaultDialTimeout      = 20 * time.Second
	DefaultKeepAliveTime    = 30 * time.Second
	DefaultKeepAliveTimeout = 10 * time.Second
	DefaultPrefix           = "/registry"
)

// minKeepAliveTime is gRPC's lower limit, to which it silently raises smaller values.
const minKeepAliveTime = 10 * time.Second

// Config configures a Backend and its connection to an etcd cluster. Only Endpoints is required.
type Config struct {
	// Endpoints are the members of one etcd cluster: "https://host:2379", "http://host:2379",
	// "unix:///path/to.sock", or "host:2379", which means TLS if a file below is given. All or none
	// must use TLS.
	Endpoints []string

	// CertFile and KeyFile are PEM files of the client's certificate and key. Set both or neither.
	// They are reread for each new connection, so that you can replace them.
	CertFile, KeyFile string

	// TrustedCAFile is a PEM file of the authorities that sign the servers' certificates. Empty
	// means the system's. Open reads it once.
	TrustedCAFile string

	// DialTimeout bounds Open's wait for the first answer. 0 means DefaultDialTimeout.
	DialTimeout time.Duration

	// KeepAliveTime is the idle time after which a connection is probed, at least 10 s, and
	// KeepAliveTimeout the time without an answer after which it is closed. 0 means the default.
	KeepAliveTime, KeepAliveTimeout time.Duration

	// Prefix precedes every key in etcd. Empty means DefaultPrefix.
	Prefix string

	// CompactionInterval is the interval between compactions of etcd's history, and the minimum age
	// of the history that each keeps. With 0, the backend never compacts.
	CompactionInterval time.Duration

	// Metrics receives the client's gRPC metrics (grpc_client_*). Nil means none. Existing ones, of
	// another backend or k8s.io/apiserver, are shared. They stay registered after Close.
	Metrics prometheus.Registerer

	// TracerProvider receives a span for each call. Nil means no spans; callers' trace contexts are
	// still propagated.
	TracerProvider trace.TracerProvider

	// Logger receives the etcd client's log and this package's. Nil means none.
	Logger *zap.Logger

	// DialOptions override the client's own, e.g. with a dialer (grpc.WithContextDialer) for a
	// network behind a proxy.
	DialOptions []grpc.DialOption
}

// Validate returns an error of one line that lists every invalid field by name and value. It reads
// no files; Open does.
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

// checkPrefix returns an error for a prefix that k8s.io/apiserver would change before use.
func checkPrefix(prefix string) error {
	trimmed := strings.Trim(prefix, "/")
	if trimmed != "" && path.Clean("/"+trimmed) != "/"+trimmed {
		return errors.New(`is not a path without empty, "." and ".." elements`)
	}
	return nil
}

// ConfigFrom translates the storage settings of an API server, i.e. its --etcd-* flags. An empty
// prefix there means none, "/" in a Config.
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
