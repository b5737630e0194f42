// SPDX-License-Identifier: Apache-2.0

//go:build unix

package kubernetes

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/integration/internal/child"
)

const (
	root = "../.."

	// patience bounds the wait for what is sure to happen.
	patience     = 3 * time.Minute
	pollInterval = 100 * time.Millisecond
)

// The watch caches that --watch-cache-implementation names.
const (
	ours    = "watchcache"
	shipped = "shipped"
)

// binaries is where the tests build; TestMain makes and removes it.
var binaries string

// program returns one that is compiled in a folder.
func program(variable, name, dir, pkg string) *child.Program {
	return &child.Program{Variable: variable, Compile: func() (string, error) {
		path := filepath.Join(binaries, name)
		return path, child.GoBuild(dir, []string{"GOWORK=off"}, "-o", path, pkg)
	}}
}

// compileCluster compiles what make kubernetes does.
func compileCluster() (string, error) {
	path := filepath.Join(binaries, "cluster")
	source := filepath.Join(root, ".run", "kubernetes-source") // a copy that stays, as what is compiled of it does
	if err := os.MkdirAll(source, 0o755); err != nil {
		return "", err
	}
	modfile, err := exec.Command("go", "run", "./builtin", source).Output()
	if err != nil {
		return "", fmt.Errorf("go run ./builtin: %w", err)
	}
	version, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes").Output()
	if err != nil {
		return "", fmt.Errorf("go list -m k8s.io/kubernetes: %w", err)
	}
	return path, child.GoBuild(".", []string{"GOWORK=off"}, "-ldflags=-X k8s.io/component-base/version.gitVersion="+strings.TrimSpace(string(version)),
		"-modfile="+strings.TrimSpace(string(modfile)), "-o", path, "./cluster")
}

var (
	// kubernetes is each server of Kubernetes, by its first argument, and etcd.
	kubernetes = &child.Program{Variable: "WATCHCACHE_KUBERNETES_BINARY", Compile: compileCluster}
	fleet      = program("WATCHCACHE_FLEET_BINARY", "fleet", root, "./examples/apiserver")
	widgets    = program("WATCHCACHE_WIDGETS_BINARY", "widgets", root+"/examples/minimal", ".")
)

// TestMain compiles before the clock of any test runs.
func TestMain(m *testing.M) {
	os.Exit(child.InTempDir("kubernetes", func(dir string) int {
		binaries = dir
		for _, p := range []*child.Program{kubernetes, fleet, widgets, relay, kubectl} {
			if _, err := p.Path(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		return m.Run()
	}))
}

// cluster is an etcd and a kube-apiserver.
type cluster struct {
	dir        string
	etcd       []string
	url        string
	kubeconfig string // of the administrator
	// address is one of this machine that is not a loopback address: those of
	// Endpoints must not be.
	address string
}

// startCluster starts a cluster on a watch cache, which ends with the test.
func startCluster(t *testing.T, on string) *cluster {
	t.Helper()
	for _, tool := range []string{"kubectl", "openssl", "bash"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	c := &cluster{dir: t.TempDir(), address: ownAddress(t)}
	c.etcd = etcdserver.Start(t, etcdserver.Config{Mode: etcdserver.Process}).Endpoints()
	c.sh(t, certificates)
	port := freePort(t, "127.0.0.1")
	c.url = "https://127.0.0.1:" + strconv.Itoa(port)
	c.run(t, kubernetes, "kube-apiserver", "--watch-cache-implementation="+on,
		"--etcd-servers="+c.etcd[0], "--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(port),
		"--advertise-address="+c.address, "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.0.0.0/24",
		"--tls-cert-file=serving.crt", "--tls-private-key-file=serving.key", "--client-ca-file=ca.crt", "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=sa.key", "--service-account-signing-key-file=sa.key",
		"--requestheader-client-ca-file=front.crt", "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=proxy.crt", "--proxy-client-key-file=proxy.key", "--enable-aggregator-routing=true")
	c.kubeconfig = c.writeKubeconfig(t, "admin", "{client-certificate: admin.crt, client-key: admin.key}")
	c.eventually(t, "kubectl get --raw /readyz", "ok")
	return c
}

// certificates are those of a cluster: of kube-apiserver, of its administrator, of
// its proxy to aggregated servers, and the key of its service accounts' tokens.
const certificates = `
key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
authority() { openssl req -x509 $key -days 1 -subj "/CN=$1" -keyout "$1.key" -out "$1.crt"; }
sign() {
	openssl req $key -subj "$3" -addext "$4" -keyout "$1.key" -out "$1.csr"
	openssl x509 -req -in "$1.csr" -CA "$2.crt" -CAkey "$2.key" -CAcreateserial -days 1 -copy_extensions copy -out "$1.crt"
}
authority ca
authority front
sign serving ca /CN=kube-apiserver subjectAltName=IP:127.0.0.1
sign admin ca /O=system:masters/CN=admin extendedKeyUsage=clientAuth
sign proxy front /CN=front-proxy-client extendedKeyUsage=clientAuth
openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out sa.key
`

// writeKubeconfig writes the kubeconfig of a user and returns its name.
func (c *cluster) writeKubeconfig(t *testing.T, name, user string) string {
	t.Helper()
	path := filepath.Join(c.dir, name+".kubeconfig")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority: ca.crt}}]
users: [{name: u, user: %s}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`, c.url, user), 0o600))
	return path
}

// as returns the kubeconfig of a ServiceAccount.
func (c *cluster) as(t *testing.T, namespace, account string) string {
	t.Helper()
	token := c.sh(t, "kubectl -n "+namespace+" create token "+account)
	return c.writeKubeconfig(t, namespace+"-"+account, fmt.Sprintf("{token: %q}", strings.TrimSpace(token)))
}

// try runs a script as the cluster's administrator, in the directory of the cluster.
func (c *cluster) try(script string, env ...string) (string, error) {
	cmd := exec.Command("bash", "-euc", script)
	cmd.Dir = c.dir
	cmd.Env = append(append(os.Environ(), "HOME="+c.dir, "KUBECONFIG="+c.kubeconfig), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// sh runs a script that must succeed.
func (c *cluster) sh(t *testing.T, script string, env ...string) string {
	t.Helper()
	out, err := c.try(script, env...)
	require.NoError(t, err, "%s\n%s", script, out)
	return out
}

// eventually runs a script until it succeeds and says what is wanted.
func (c *cluster) eventually(t *testing.T, script, want string, env ...string) {
	t.Helper()
	var out string
	var err error
	require.Eventually(t, func() bool {
		out, err = c.try(script, env...)
		return err == nil && strings.Contains(out, want)
	}, patience, pollInterval, "%s", script)
}

// process is a server that a test has started.
type process struct {
	cmd    *exec.Cmd
	log    child.Tail
	exited chan struct{}
}

// run starts a program, which is killed with the test. The goroutine that awaits it
// ends with it.
func (c *cluster) run(t *testing.T, p *child.Program, args ...string) *process {
	t.Helper()
	path, err := p.Path()
	require.NoError(t, err)
	s := &process{cmd: exec.Command(path, args...), exited: make(chan struct{})}
	s.cmd.Dir = c.dir
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	s.cmd.SysProcAttr = child.Attributes()
	require.NoError(t, s.cmd.Start())
	go func() {
		defer close(s.exited)
		_ = s.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.exited
		if t.Failed() {
			t.Logf("the end of the output of %s:\n%s", filepath.Base(path), s.log.String())
		}
	})
	return s
}

// interrupt is Ctrl-C, after which a server ends by itself and logs no warning.
func (s *process) interrupt(t *testing.T) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(s.log.String()), "\n")
	require.NoError(t, s.cmd.Process.Signal(os.Interrupt))
	select {
	case <-s.exited:
	case <-time.After(patience):
		t.Fatal("the server does not end")
	}
	require.Zero(t, s.cmd.ProcessState.ExitCode())
	_, after, found := strings.Cut(s.log.String(), lines[len(lines)-1])
	require.True(t, found)
	require.NotRegexp(t, `(?m)^[EWF]\d{4} `, after)
}

// ownAddress returns an IPv4 address of this machine.
func ownAddress(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, address := range addresses {
		if ip := address.(*net.IPNet).IP.To4(); ip != nil && ip.IsGlobalUnicast() {
			return ip.String()
		}
	}
	const why = "this machine has loopback addresses only, which Endpoints must not have"
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
	return ""
}

func freePort(t *testing.T, address string) int {
	t.Helper()
	listener, err := net.Listen("tcp", address+":0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}
