// SPDX-License-Identifier: Apache-2.0

//go:build linux

package computed

import (
	"bufio"
	"bytes"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-watchcache/watchcache/integration/internal/child"
	"github.com/kube-watchcache/watchcache/integration/internal/pages"
	"github.com/kube-watchcache/watchcache/internal/race"
)

const (
	root = "../.."

	// patience bounds the wait for what is sure to happen.
	patience     = 2 * time.Minute
	pollInterval = 50 * time.Millisecond
)

var loads = schema.GroupVersionResource{Group: "loads.example.com", Version: "v1", Resource: "loads"}

// program is what the command of docs/computed.md compiles, of a copy that hack/new-server.sh makes outside of this tree.
var program string

func TestMain(m *testing.M) {
	os.Exit(child.InTempDir("computed", func(dir string) int {
		program = dir + "/loads"
		args, err := said("go run")
		if race.Enabled {
			args = append([]string{"-race"}, args...)
		}
		if err == nil {
			err = exec.Command(root+"/hack/new-server.sh", "computed", dir+"/copy").Run()
		}
		if err == nil {
			err = child.GoBuild(dir+"/copy", []string{"GOWORK=off"}, append([]string{"-o", program}, args...)...)
		}
		if err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			return 1
		}
		return m.Run()
	}))
}

// said returns the arguments that docs/computed.md gives a command.
func said(command string) ([]string, error) {
	blocks, err := pages.Section(root+"/docs/computed.md", "An example")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(blocks[0].Text) {
		if args, ok := strings.CutPrefix(line, command+" "); ok {
			return strings.Fields(args), nil
		}
	}
	return nil, &exec.Error{Name: command, Err: exec.ErrNotFound}
}

// server is a process of the example.
type server struct {
	t    *testing.T
	dir  string // .run is its run directory
	url  *url.URL
	cmd  *exec.Cmd
	log  child.Tail
	read chan struct{} // closed when all that it has printed was read
}

var serving = regexp.MustCompile(`^Serving loads\.example\.com/v1 on (https://\S+), kubeconfig \.run/kubeconfig$`)

// start starts a server, which listens on a port, "0" for a free one.
func start(t *testing.T, dir, port string) *server {
	t.Helper()
	s := &server{t: t, dir: dir, cmd: exec.Command(program, "--secure-port="+port), read: make(chan struct{})}
	s.cmd.Dir, s.cmd.SysProcAttr = dir, child.Attributes()
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	s.cmd.Stderr = s.cmd.Stdout
	require.NoError(t, s.cmd.Start())
	ready := make(chan string, 1)
	go func() { // ends with the process, and stop awaits it
		defer close(s.read)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			_, _ = io.WriteString(&s.log, lines.Text()+"\n")
			if match := serving.FindStringSubmatch(lines.Text()); match != nil {
				ready <- match[1]
			}
		}
	}()
	t.Cleanup(func() {
		s.stop(syscall.SIGKILL)
		if t.Failed() {
			t.Log(s.log.String())
		}
	})
	select {
	case address := <-ready:
		s.url, err = url.Parse(address)
		require.NoError(t, err)
	case <-s.read:
		require.Fail(t, "the server has ended", s.log.String())
	case <-time.After(patience):
		require.Fail(t, "the server does not serve", s.log.String())
	}
	return s
}

// stop sends a signal, awaits the end of the process and returns its exit status.
func (s *server) stop(signal syscall.Signal) int {
	if s.cmd.ProcessState == nil {
		require.NoError(s.t, s.cmd.Process.Signal(signal))
		<-s.read
		_ = s.cmd.Wait() // its error is the exit status
	}
	return s.cmd.ProcessState.ExitCode()
}

func (s *server) config() *rest.Config {
	s.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", s.dir+"/.run/kubeconfig")
	require.NoError(s.t, err)
	return config
}

func (s *server) client() dynamic.ResourceInterface {
	s.t.Helper()
	client, err := dynamic.NewForConfig(s.config())
	require.NoError(s.t, err)
	return client.Resource(loads)
}

// state returns the resourceVersions of the loads by their names, and that of the list.
func (s *server) state() (map[string]string, string) {
	s.t.Helper()
	list, err := s.client().List(s.t.Context(), metav1.ListOptions{})
	require.NoError(s.t, err)
	state := map[string]string{}
	for _, load := range list.Items {
		state[load.GetName()] = load.GetResourceVersion()
	}
	return state, list.GetResourceVersion()
}

// process is a program in a process group of its own.
type process struct {
	name string // of its load
	end  func()
}

func startProcess(t *testing.T) process {
	t.Helper()
	cmd := exec.Command("cat")
	cmd.SysProcAttr = child.Attributes()
	cmd.SysProcAttr.Setpgid = true
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	end := sync.OnceFunc(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	t.Cleanup(end)
	return process{"group-" + strconv.Itoa(cmd.Process.Pid), end}
}

// informed is an informer of client-go, what it has asked for and what it was told.
type informed struct {
	store cache.Store
	mu    struct {
		sync.Mutex
		watches []url.Values
		expired int            // ERROR events that were received with 410
		deleted map[string]int // by name
	}
}

func inform(t *testing.T, config *rest.Config, selector string) *informed {
	t.Helper()
	in := &informed{}
	in.mu.deleted = map[string]int{}
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return &recorder{inner, in} })
	client, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	informer := dynamicinformer.NewFilteredDynamicInformer(client, loads, "", 0, nil, func(opts *metav1.ListOptions) { opts.LabelSelector = selector }).Informer()
	in.store = informer.GetStore()
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
		in.mu.Lock()
		defer in.mu.Unlock()
		if err == nil {
			in.mu.deleted[name]++
		}
	}})
	require.NoError(t, err)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // awaited at the test's end
		defer close(stopped)
		informer.Run(stop)
	}()
	t.Cleanup(func() {
		close(stop)
		<-stopped
	})
	require.Eventually(t, informer.HasSynced, patience, pollInterval)
	return in
}

// state is that of server.state.
func (in *informed) state() map[string]string {
	state := map[string]string{}
	for _, obj := range in.store.List() {
		load := obj.(metav1.Object)
		state[load.GetName()] = load.GetResourceVersion()
	}
	return state
}

// agrees waits until the informer has what a list of the server has.
func (in *informed) agrees(s *server) (state map[string]string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		state, _ = s.state()
		return maps.Equal(state, in.state())
	}, patience, pollInterval)
	return state
}

// recorder is the transport of an informer.
type recorder struct {
	http.RoundTripper
	in *informed
}

func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.RoundTripper.RoundTrip(request)
	if query := request.URL.Query(); err == nil && query.Has("watch") {
		r.in.mu.Lock()
		defer r.in.mu.Unlock()
		r.in.mu.watches = append(r.in.mu.watches, query)
		response.Body = &body{ReadCloser: response.Body, in: r.in}
	}
	return response, err
}

// body counts the 410s of a watch. An event is small enough to come in one piece.
type body struct {
	io.ReadCloser
	in *informed
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if bytes.Contains(p[:n], []byte(`"reason":"Expired","code":410`)) {
		b.in.mu.Lock()
		defer b.in.mu.Unlock()
		b.in.mu.expired++
	}
	return n, err
}
