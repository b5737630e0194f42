// SPDX-License-Identifier: Apache-2.0

//go:build unix

package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Config is what a cluster is started with.
type Config struct {
	// Binary is the path of the program that becomes a server by its first argument.
	Binary string
	// Dir is where credentials, logs and data are; one cluster at a time uses it.
	Dir string
	// Implementation is the watch cache of the kube-apiserver, as its flag names it.
	Implementation string
	// Servers, if set, are further flags of a server, by its name.
	Servers map[string][]string
	// Alone: the kube-apiserver is there without controllers and scheduler.
	Alone bool
}

// order is the servers, each before those that use it.
var order = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "relay"}

const dialPatience = 10 * time.Second

// Cluster is a control plane that runs. Its methods are for one goroutine at a time.
type Cluster struct {
	config Config
	lock   *os.File // held as long as the cluster has the directory
	data   string   // of etcd

	etcdURL string
	port    int
	// servers are those that run, in order.
	servers []*Process
}

// Start starts a cluster, and returns when its kube-apiserver is ready. A cluster that
// can't be started leaves no process behind. Data of an earlier cluster in the same
// directory is removed.
func Start(ctx context.Context, config Config) (_ *Cluster, err error) {
	c := &Cluster{config: config}
	if c.config.Dir, err = filepath.Abs(config.Dir); err != nil {
		return nil, err
	}
	if err := c.take(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	if err := c.writeFiles(); err != nil {
		return nil, err
	}
	if err := c.startEtcd(ctx); err != nil {
		return nil, err
	}
	if err := c.StartAPIServer(ctx); err != nil {
		return nil, err
	}
	if config.Alone {
		return c, nil
	}
	return c, c.startControllers()
}

// dataPattern are the names of the folders with etcd's data.
const dataPattern = "etcd-data-*"

// take makes the directory and locks it.
func (c *Cluster) take() error {
	if err := os.MkdirAll(c.config.Dir, 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(c.path("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return fmt.Errorf("a cluster runs in %s: end it, or name another directory with -dir (%w)", c.config.Dir, err)
	}
	c.lock = lock
	left, err := filepath.Glob(c.path(dataPattern))
	for _, dir := range left {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

func (c *Cluster) path(name string) string { return filepath.Join(c.config.Dir, name) }

// writeFiles writes what the servers read.
func (c *Cluster) writeFiles() (err error) {
	if c.data, err = os.MkdirTemp(c.config.Dir, dataPattern); err != nil {
		return err
	}
	logs, err := filepath.Glob(c.path("*.log"))
	for _, log := range logs {
		err = errors.Join(err, os.Remove(log))
	}
	if err != nil {
		return err
	}
	if c.port, err = freePort(); err != nil {
		return err
	}
	if err := writeCredentials(c.config.Dir); err != nil {
		return err
	}
	for user := range clients {
		if err := os.WriteFile(c.kubeconfig(user), fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: local, cluster: {server: "https://127.0.0.1:%d", certificate-authority: ca.crt}}]
users: [{name: %[2]s, user: {client-certificate: %[2]s.crt, client-key: %[2]s.key}}]
contexts: [{name: local, context: {cluster: local, user: %[2]s}}]
current-context: local
`, c.port, user), 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(c.path("scheduler.yaml"), fmt.Appendf(nil, `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: %s, qps: 1000, burst: 2000}
leaderElection: {leaderElect: false}
`, c.kubeconfig("kube-scheduler")), 0o600)
}

func (c *Cluster) kubeconfig(user string) string { return c.path(user + ".kubeconfig") }

// Kubeconfig is the path of the administrator's.
func (c *Cluster) Kubeconfig() string { return c.kubeconfig("admin") }

// Client returns how a user of the cluster reaches it: "admin" or "nodes".
func (c *Cluster) Client(user string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig(user))
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	// Transports are shared by Configs that name the same files, even if their content is
	// that of another cluster by now. A dialer makes the Config another one.
	config.Dial = (&net.Dialer{Timeout: dialPatience}).DialContext
	config.ContentType, config.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	return config, nil
}

// EtcdMetrics is the URL of etcd's metrics.
func (c *Cluster) EtcdMetrics() string { return c.etcdURL + "/metrics" }

// start starts a server.
func (c *Cluster) start(name string, args ...string) (*Process, error) {
	return c.startProgram(c.config.Binary, name, append([]string{name}, args...)...)
}

func (c *Cluster) startProgram(binary, name string, args ...string) (*Process, error) {
	p, err := start(c.config.Dir, binary, name, append(args, c.config.Servers[name]...))
	if err == nil {
		c.servers = append(c.servers, p)
		slices.SortStableFunc(c.servers, func(a, b *Process) int { return slices.Index(order, a.Name) - slices.Index(order, b.Name) })
	}
	return p, err
}

func (c *Cluster) startEtcd(ctx context.Context) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	c.etcdURL = fmt.Sprintf("http://127.0.0.1:%d", port)
	p, err := c.start("etcd",
		"--name=local", "--data-dir="+c.data, "--listen-client-urls="+c.etcdURL, "--advertise-client-urls="+c.etcdURL,
		// A single member talks to no peer: any free port will do.
		"--listen-peer-urls=http://127.0.0.1:0", "--log-level=warn", "--unsafe-no-fsync", "--quota-backend-bytes=8589934592")
	if err != nil {
		return err
	}
	return p.await(ctx, func(ctx context.Context) error { return get(ctx, c.etcdURL+"/health") })
}

func get(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return nil
}

// StartAPIServer starts the kube-apiserver, and returns when it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	p, err := c.start("kube-apiserver", c.APIServerFlags(c.port)...)
	if err != nil {
		return err
	}
	return c.awaitReady(ctx, p, "")
}

// APIServerFlags are those of a kube-apiserver of the cluster on a port, for programs that
// run in its directory.
func (c *Cluster) APIServerFlags(port int) []string {
	return []string{
		"--watch-cache-implementation=" + c.config.Implementation,
		"--etcd-servers=" + c.etcdURL, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		// Otherwise a kube-apiserver waits for a minute for watches that don't end.
		"--shutdown-watch-termination-grace-period=5s", "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.0.0.0/16",
		"--tls-cert-file=serving.crt", "--tls-private-key-file=serving.key", "--client-ca-file=ca.crt", "--authorization-mode=Node,RBAC",
		// Nobody has a certificate of that name: aggregated servers, and relays, log an error if there is no authority.
		"--requestheader-client-ca-file=ca.crt", "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=sa.key", "--service-account-signing-key-file=sa.key",
	}
}

// awaitReady returns when a server at an address, by default that of the kube-apiserver,
// is ready.
func (c *Cluster) awaitReady(ctx context.Context, p *Process, address string) error {
	config, err := c.Client("admin")
	if err != nil {
		return err
	}
	config.Host = cmp.Or(address, config.Host)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	return p.await(ctx, func(ctx context.Context) error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// StartRelay starts the program of cmd/relay for some resources of the kube-apiserver, and
// returns its address when it is ready. It trusts whom the kube-apiserver trusts, and has
// the same certificate.
func (c *Cluster) StartRelay(ctx context.Context, binary, resources string, args ...string) (address string, err error) {
	if binary, err = filepath.Abs(binary); err != nil { // it runs in the cluster's directory
		return "", err
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	p, err := c.startProgram(binary, "relay", append([]string{
		"--kubeconfig=" + c.kubeconfig("relay"), "--resources=" + resources, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		"--tls-cert-file=serving.crt", "--tls-private-key-file=serving.key",
	}, args...)...)
	if err != nil {
		return "", err
	}
	address = fmt.Sprintf("https://127.0.0.1:%d", port)
	return address, c.awaitReady(ctx, p, address)
}

// startControllers starts what uses the kube-apiserver.
func (c *Cluster) startControllers() error {
	config := c.kubeconfig("kube-controller-manager")
	if _, err := c.start("kube-controller-manager", "--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
		"--service-account-private-key-file=sa.key", "--root-ca-file=ca.crt", "--use-service-account-credentials=true",
		"--leader-elect=false", "--secure-port=0", "--kube-api-qps=1000", "--kube-api-burst=2000",
		"--concurrent-deployment-syncs=20", "--concurrent-replicaset-syncs=20", "--concurrent-gc-syncs=20"); err != nil {
		return err
	}
	config = c.kubeconfig("kube-scheduler")
	_, err := c.start("kube-scheduler", "--config=scheduler.yaml", "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config, "--secure-port=0")
	return err
}

// Server returns one that runs by its name, or nil.
func (c *Cluster) Server(name string) *Process {
	for _, p := range c.servers {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// StopServer ends one server, and awaits its end.
func (c *Cluster) StopServer(name string) error {
	for i, p := range c.servers {
		if p.Name == name {
			c.servers = append(c.servers[:i:i], c.servers[i+1:]...)
			return p.Stop()
		}
	}
	return fmt.Errorf("%s does not run", name)
}

// Await returns nil when ctx ends, or the error of the first server that ends by itself.
func (c *Cluster) Await(ctx context.Context) error {
	ended := make(chan *Process)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, p := range c.servers {
		go func() { // ends with the server or with ctx
			select {
			case <-p.Exited():
				select {
				case ended <- p:
				case <-ctx.Done():
				}
			case <-ctx.Done():
			}
		}()
	}
	select {
	case p := <-ended:
		return p.Ended()
	case <-ctx.Done():
		return nil
	}
}

// Stop ends all servers, those first that use the others, and removes etcd's data.
// Credentials and logs stay.
func (c *Cluster) Stop() error {
	var all []error
	for len(c.servers) > 0 {
		all = append(all, c.StopServer(c.servers[len(c.servers)-1].Name))
	}
	if c.data != "" {
		all = append(all, os.RemoveAll(c.data))
	}
	if c.lock != nil {
		all = append(all, c.lock.Close())
		c.lock = nil
	}
	return errors.Join(all...)
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}
