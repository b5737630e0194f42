// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/kube-watchcache/watchcache/internal/klogzap"
)

// Config says where and how a server runs. Dir and BindAddress are required.
type Config struct {
	// Dir is the run directory: for credentials, the kubeconfig and etcd's data. If
	// it does not exist, Open makes it, readable by its owner only.
	Dir string
	// BindAddress is the loopback address to listen on.
	BindAddress net.IP
	// Port is the TCP port to listen on; 0 picks a free one.
	Port int
	// Etcd asks for an etcd inside the process, with its data in Dir/etcd. The
	// etcd listens on a unix socket that only its owner can connect to.
	Etcd bool
	// Logger receives the log of that etcd. Nil means klog, at -v=2.
	Logger *zap.Logger
}

// Environment is an open run directory and what runs in it. Its owner closes it
// after the API server has stopped.
type Environment struct {
	dir         string
	lock        *fileutil.LockedFile
	listener    net.Listener
	credentials *credentials
	etcd        etcdServer
}

// etcdServer is the part of embedded.Server that is needed here.
type etcdServer interface {
	Endpoints() []string
	Done() <-chan struct{}
	Err() error
	Close() error
}

// Open listens, takes the run directory, and starts etcd if asked to. Open
// changes nothing on disk before it has the port and nothing in the directory
// before it owns that too, and leaves nothing running if it fails. Its errors
// begin with the flag to look at: --bind-address, --secure-port or --run-dir,
// the last of which is Config.Dir.
func Open(ctx context.Context, config Config) (_ *Environment, err error) {
	if err := CheckLoopback(config.BindAddress); err != nil {
		return nil, fmt.Errorf("--bind-address: %w", err)
	}
	if config.Dir == "" {
		return nil, errors.New("--run-dir is required: name the run directory")
	}
	env := &Environment{dir: config.Dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, env.Close())
		}
	}()
	address := net.JoinHostPort(config.BindAddress.String(), strconv.Itoa(config.Port))
	if env.listener, err = net.Listen("tcp", address); err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("%w: stop what listens there, or choose another port; 0 picks a free one", err)
		}
		return nil, fmt.Errorf("--secure-port %d: %w", config.Port, err)
	}
	if env.lock, err = lockDir(config.Dir); err != nil {
		return nil, fmt.Errorf("--run-dir %s: %w", config.Dir, err)
	}
	env.credentials, err = loadOrCreate(filepath.Join(config.Dir, credentialsName), config.BindAddress, time.Now())
	if err != nil {
		return nil, fmt.Errorf("--run-dir %s: %w", config.Dir, err)
	}
	if config.Etcd {
		// etcd warns of much that mends itself; what ends it comes back as an error.
		logger := cmp.Or(config.Logger, klogzap.New(zap.FatalLevel+1, 2, "").Named("etcd"))
		if env.etcd, err = startEtcd(ctx, config.Dir, logger); err != nil {
			return nil, fmt.Errorf("--run-dir %s: %w", config.Dir, err)
		}
	}
	return env, nil
}

// Close stops etcd, whose data stays, and gives the port and the directory back.
// Close may be called more than once.
func (e *Environment) Close() error {
	var errs []error
	if e.etcd != nil {
		errs = append(errs, e.etcd.Close())
		e.etcd = nil
	}
	if e.listener != nil {
		if err := e.listener.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
		e.listener = nil
	}
	if e.lock != nil {
		errs = append(errs, e.lock.Close())
		e.lock = nil
	}
	return errors.Join(errs...)
}

// URL is how clients reach the server.
func (e *Environment) URL() string { return "https://" + e.listener.Addr().String() }

// Endpoints returns those of the etcd inside the process; nil without one.
func (e *Environment) Endpoints() []string {
	if e.etcd == nil {
		return nil
	}
	return e.etcd.Endpoints()
}

// ClientConfig is what the kubeconfig says, for a client in this process.
func (e *Environment) ClientConfig() *rest.Config {
	return &rest.Config{
		Host: e.URL(),
		TLSClientConfig: rest.TLSClientConfig{
			CAData:   e.credentials.ca,
			CertData: e.credentials.clientCert,
			KeyData:  e.credentials.clientKey,
		},
	}
}

// writeKubeconfig writes the kubeconfig, as a whole and readable by its owner
// only, and returns its name.
func (e *Environment) writeKubeconfig() (string, error) {
	name := filepath.Join(e.dir, kubeconfigName)
	content, err := e.credentials.kubeconfig(e.URL())
	if err == nil {
		err = writeFile(name, content)
	}
	if err != nil {
		return "", fmt.Errorf("--run-dir %s: writing the kubeconfig: %w", e.dir, err)
	}
	return name, nil
}
