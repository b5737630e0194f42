// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.uber.org/zap"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/rest"
)

// Config says where and how a standalone server runs.
type Config struct {
	// Dir is the run directory; it is made if it does not exist.
	Dir string
	// BindAddress is the loopback address to listen on.
	BindAddress net.IP
	// Port to listen on; 0 picks a free one.
	Port int
	// Etcd asks for an etcd inside the process, with its data in Dir/etcd.
	Etcd bool
	// Logger gets what that etcd has to say.
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

// Open listens, takes the run directory, and starts etcd if asked to. It changes
// nothing on disk before it has the port and nothing in the directory before it
// owns that too, and leaves nothing running if it fails. Its errors begin with the
// flag to look at.
func Open(ctx context.Context, config Config) (_ *Environment, err error) {
	if err := CheckLoopback(config.BindAddress); err != nil {
		return nil, fmt.Errorf("--bind-address: %w", err)
	}
	env := &Environment{dir: config.Dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, env.Close())
		}
	}()
	address := net.JoinHostPort(config.BindAddress.String(), strconv.Itoa(config.Port))
	if env.listener, err = net.Listen("tcp", address); err != nil {
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
		if env.etcd, err = startEtcd(ctx, config.Dir, config.Logger); err != nil {
			return nil, fmt.Errorf("--run-dir %s: %w", config.Dir, err)
		}
	}
	return env, nil
}

// Close stops etcd, whose data stays, and gives the port and the directory back.
// It may be called more than once.
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

// Listener returns where the server is to serve.
func (e *Environment) Listener() net.Listener { return e.listener }

// URL is how clients reach the server.
func (e *Environment) URL() string { return "https://" + e.listener.Addr().String() }

// Endpoints returns those of the etcd inside the process; nil without one.
func (e *Environment) Endpoints() []string {
	if e.etcd == nil {
		return nil
	}
	return e.etcd.Endpoints()
}

// Watch returns nil when ctx ends, and an error as soon as the etcd inside the
// process ends by itself.
func (e *Environment) Watch(ctx context.Context) error {
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

// ServingCert is what the server shows to its clients.
func (e *Environment) ServingCert() (dynamiccertificates.CertKeyContentProvider, error) {
	return dynamiccertificates.NewStaticCertKeyContent("standalone serving certificate", e.credentials.servingCert, e.credentials.servingKey)
}

// Protect makes the server accept the client of the kubeconfig and nobody else.
func (e *Environment) Protect(config *genericapiserver.Config) error {
	return e.credentials.protect(config)
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

// WriteKubeconfig writes the kubeconfig, as a whole and readable by its owner
// only, and returns its name.
func (e *Environment) WriteKubeconfig() (string, error) {
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
