// SPDX-License-Identifier: Apache-2.0

//go:build unix

package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kube-watchcache/watchcache/integration/internal/child"
	"github.com/kube-watchcache/watchcache/integration/internal/proxy"
	"github.com/kube-watchcache/watchcache/integration/kubernetes/local"
	"github.com/kube-watchcache/watchcache/integration/kubernetes/nodes"
)

// The relay, and the kubectl of the cluster's version.
var (
	relay   = program("WATCHCACHE_RELAY_BINARY", "relay", root, "./cmd/relay")
	kubectl = &child.Program{Variable: "WATCHCACHE_KUBECTL_BINARY", Compile: func() (string, error) {
		path := filepath.Join(binaries, "kubectl")
		return path, child.GoBuild(".", []string{"GOWORK=off"}, "-ldflags=-w", "-o", path, "k8s.io/kubernetes/cmd/kubectl")
	}}
)

const served = "pods,nodes,services,endpointslices.discovery.k8s.io,gadgets.zoo.example.com"

var gadgetsResource = schema.GroupVersionResource{Group: "zoo.example.com", Version: "v1", Resource: "gadgets"}

const gadgetsDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.zoo.example.com}
spec:
  group: zoo.example.com
  scope: Namespaced
  names: {kind: Gadget, plural: gadgets, singular: gadget, shortNames: [gd]}
  versions:
  - name: v1
    served: true
    storage: true
    selectableFields: [{jsonPath: .spec.color}]
    additionalPrinterColumns: [{name: Color, type: string, jsonPath: .spec.color}]
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {color: {type: string}, size: {type: integer}}}}}}
`

// gadget is the manifest of a custom resource.
func gadget(name, color string) string {
	return fmt.Sprintf("---\napiVersion: zoo.example.com/v1\nkind: Gadget\nmetadata: {name: %s, namespace: lab}\nspec: {color: %s, size: 1}\n", name, color)
}

// workload is pods that are there twice: those of a Deployment behind a Service, and one
// that waits for its gate.
const workload = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: lab}
spec:
  replicas: 6
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: lab}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
` + gated

const gated = `
apiVersion: v1
kind: Pod
metadata: {name: gated, namespace: lab, labels: {app: gated}}
spec: {schedulingGates: [{name: example.com/gate}], containers: [{name: c, image: i}]}
`

// relayed is a cluster with controllers and fake nodes, and a relay before it.
type relayed struct {
	*cluster // as kubectl reaches the kube-apiserver
	on       string
	local    *local.Cluster
	etcd     *clientv3.Client
	// through is the same, by the relay's address.
	through *cluster
	relay   *process
	// network is between the relay and the kube-apiserver.
	network *proxy.Proxy
}

// startRelayed starts both. The relay has the rights that its page says.
func startRelayed(t *testing.T, on string) *relayed {
	t.Helper()
	path, err := kubectl.Path()
	require.NoError(t, err)
	t.Setenv("PATH", filepath.Dir(path)+string(os.PathListSeparator)+os.Getenv("PATH"))
	if path, err = kubernetes.Path(); err != nil {
		t.Fatal(err)
	}
	c := &relayed{on: on}
	c.local, err = local.Start(within(t), local.Config{Binary: path, Dir: t.TempDir(), Implementation: on})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.local.Stop()) })
	admin, err := c.local.Client("admin")
	require.NoError(t, err)
	c.cluster = &cluster{dir: filepath.Dir(c.local.Kubeconfig()), url: admin.Host, kubeconfig: c.local.Kubeconfig()}
	c.etcd, err = clientv3.New(clientv3.Config{Endpoints: []string{strings.TrimSuffix(c.local.EtcdMetrics(), "/metrics")}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.etcd.Close()) })
	c.startNodes(t)

	c.apply(t, gadgetsDefinition)
	c.sh(t, "kubectl wait --for=condition=Established crd/gadgets.zoo.example.com --timeout=3m && kubectl create namespace lab && kubectl create namespace relay && kubectl -n relay create serviceaccount relay")
	c.eventually(t, "kubectl -n lab get serviceaccount default", "default")
	page, err := os.ReadFile(root + "/cmd/relay/README.md")
	require.NoError(t, err)
	manifests := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(page)
	require.NotNil(t, manifests)
	c.apply(t, string(manifests[1]))
	c.sh(t, "kubectl create clusterrole relay-gadgets --verb=get,list,watch --resource=gadgets.zoo.example.com && kubectl create clusterrolebinding relay-gadgets --clusterrole=relay-gadgets --serviceaccount=relay:relay")

	c.network, err = proxy.Listen(strings.TrimPrefix(c.url, "https://"), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.network.Close()) })
	upstream := &cluster{dir: c.dir, url: "https://" + c.network.Address(), kubeconfig: c.kubeconfig}
	port := strconv.Itoa(freePort(t, "127.0.0.1"))
	c.relay = c.run(t, relay, "--kubeconfig="+upstream.as(t, "relay", "relay"), "--resources="+served, "--bind-address=127.0.0.1", "--secure-port="+port,
		"--tls-cert-file=serving.crt", "--tls-private-key-file=serving.key",
		"--authorization-webhook-cache-authorized-ttl=1s", "--authorization-webhook-cache-unauthorized-ttl=1s", "--authentication-token-webhook-cache-ttl=1s")
	c.through = &cluster{dir: c.dir, url: "https://127.0.0.1:" + port}
	c.through.kubeconfig = c.through.writeKubeconfig(t, "relay-admin", "{client-certificate: admin.crt, client-key: admin.key}")
	c.through.eventually(t, "kubectl get --raw /readyz", "ok")
	return c
}

func (c *relayed) startNodes(t *testing.T) {
	t.Helper()
	config, err := c.local.Client("nodes")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	registered, ended := make(chan struct{}), make(chan struct{})
	go func() { // ends with the test
		defer close(ended)
		_ = nodes.Run(ctx, nodes.Config{Client: config, Count: 3, Watches: nodes.Shared}, &nodes.Counts{}, func() { close(registered) })
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	select {
	case <-registered:
	case <-within(t).Done():
		t.Fatal("the nodes don't register")
	}
}

// within returns a context that ends with the test's patience.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// until waits until a condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	require.Eventually(t, holds, patience, pollInterval, what)
}

// config is the way of a kubeconfig, with connections of its own.
func config(t *testing.T, kubeconfig string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(t, err)
	config.QPS = -1
	return config
}

func protobuf(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	return config
}

// direct returns a client of the kube-apiserver.
func (c *relayed) direct(t *testing.T) *clientset.Clientset {
	t.Helper()
	made, err := clientset.NewForConfig(config(t, c.kubeconfig))
	require.NoError(t, err)
	return made
}

// TestRelay puts a relay before a cluster, and shows what clients get of it that know its
// address alone.
func TestRelay(t *testing.T) {
	for _, on := range []string{ours, shipped} {
		t.Run(on, func(t *testing.T) {
			c := startRelayed(t, on)
			c.apply(t, workload+gadget("g1", "red")+gadget("g2", "red")+gadget("g3", "blue"))
			c.sh(t, "kubectl -n lab wait --for=condition=Available deployment/web --timeout=3m")
			t.Run("informers", func(t *testing.T) { testInformers(t, c) })
			t.Run("kubectl", func(t *testing.T) { testKubectl(t, c) })
			t.Run("controller-runtime", func(t *testing.T) { testControllerRuntime(t, c) })
			require.NotContains(t, c.relay.log.String(), "forbidden", "the rights of the page don't suffice")
			c.relay.interrupt(t)
		})
	}
}

// requests counts what informers ask, by the resource.
type requests struct {
	mu sync.Mutex
	// lists are all requests for a whole state, watches those that are watches, with a
	// state or without. types are the media types of watches.
	lists, watches map[string]int
	types          map[string]bool
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// wrap counts the requests of a client.
func (r *requests) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.types == nil {
			r.lists, r.watches, r.types = map[string]int{}, map[string]int{}, map[string]bool{}
		}
		query, resource := request.URL.Query(), path.Base(request.URL.Path)
		watches := query.Get("watch") != ""
		if !watches || query.Get("sendInitialEvents") == "true" {
			r.lists[resource]++
		}
		if watches {
			r.watches[resource]++
		}
		if watches && err == nil {
			r.types[response.Header.Get("Content-Type")] = true
		}
		return response, err
	})
}

// counts returns the lists, the watches and their media types.
func (r *requests) counts() (lists, watches map[string]int, types []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.lists), maps.Clone(r.watches), slices.Sorted(maps.Keys(r.types))
}

// followers are informers of all that is served, through the relay.
type followers struct {
	of map[string]cache.SharedIndexInformer // by the prefix of etcd's keys
	// typed and custom have what was asked for built-in and custom resources.
	typed, custom *requests
}

// lists returns how often the informers of each resource have read the whole state.
func (f *followers) lists() map[string]int {
	all, _, _ := f.typed.counts()
	custom, _, _ := f.custom.counts()
	maps.Copy(all, custom)
	return all
}

// follow starts informers that end with the test, and returns when they have a state.
func (c *relayed) follow(t *testing.T) *followers {
	t.Helper()
	f := &followers{typed: &requests{}, custom: &requests{}}
	base := config(t, c.through.kubeconfig)
	typed := protobuf(base)
	typed.Wrap(f.typed.wrap)
	builtin, err := clientset.NewForConfig(typed)
	require.NoError(t, err)
	base.Wrap(f.custom.wrap)
	custom, err := dynamic.NewForConfig(base)
	require.NoError(t, err)
	factory, dynamics := informers.NewSharedInformerFactory(builtin, 0), dynamicinformer.NewDynamicSharedInformerFactory(custom, 0)
	f.of = map[string]cache.SharedIndexInformer{
		"/registry/pods/":                    factory.Core().V1().Pods().Informer(),
		"/registry/minions/":                 factory.Core().V1().Nodes().Informer(),
		"/registry/services/specs/":          factory.Core().V1().Services().Informer(),
		"/registry/endpointslices/":          factory.Discovery().V1().EndpointSlices().Informer(),
		"/registry/zoo.example.com/gadgets/": dynamics.ForResource(gadgetsResource).Informer(),
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		factory.Shutdown()
		dynamics.Shutdown()
	})
	factory.Start(ctx.Done())
	dynamics.Start(ctx.Done())
	for prefix, i := range f.of {
		require.True(t, cache.WaitForCacheSync(within(t).Done(), i.HasSynced), prefix)
	}
	return f
}

// stored returns the versions of all objects in etcd under a prefix, by their keys.
func (c *relayed) stored(t *testing.T, prefix string) map[string]string {
	got, err := c.etcd.Get(within(t), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	all := map[string]string{}
	for _, kv := range got.Kvs {
		all[strings.TrimPrefix(string(kv.Key), prefix)] = strconv.FormatInt(kv.ModRevision, 10)
	}
	return all
}

// level waits until all informers have what etcd has.
func (c *relayed) level(t *testing.T, f *followers) {
	t.Helper()
	for prefix, i := range f.of {
		until(t, prefix, func() bool {
			got := map[string]string{}
			for _, o := range i.GetStore().List() {
				m, err := meta.Accessor(o)
				require.NoError(t, err)
				key, err := cache.MetaNamespaceKeyFunc(o)
				require.NoError(t, err)
				got[key] = m.GetResourceVersion()
			}
			return maps.Equal(got, c.stored(t, prefix))
		})
	}
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "lab", Labels: map[string]string{"app": "bare"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

// change creates, changes and deletes objects of all that is served, by the kube-apiserver.
func (c *relayed) change(t *testing.T, round string) {
	t.Helper()
	pods := c.direct(t).CoreV1().Pods("lab")
	for i := range 20 {
		name := fmt.Sprintf("bare-%s-%d", round, i)
		_, err := pods.Create(within(t), pod(name), metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = pods.Patch(within(t), name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"changed":"yes"}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		if i%2 == 0 {
			require.NoError(t, pods.Delete(within(t), name, metav1.DeleteOptions{}))
		}
	}
	c.sh(t, `kubectl -n lab scale deployment web --replicas=9 && kubectl -n lab wait --for=jsonpath='{.status.readyReplicas}'=9 deployment/web --timeout=3m
		kubectl -n lab scale deployment web --replicas=6 && kubectl -n lab delete pods -l app=web --wait=false
		kubectl -n lab create service clusterip s`+round+` --tcp=80 && kubectl -n lab annotate service web changed=`+round+` --overwrite
		kubectl label nodes --all changed=`+round+` --overwrite && kubectl -n lab annotate gadget g1 changed=`+round+` --overwrite`)
	c.apply(t, gadget("new-"+round, "green"))
}

func testInformers(t *testing.T, c *relayed) {
	f := c.follow(t)
	c.change(t, "a")
	c.level(t, f)
	once := map[string]int{"pods": 1, "nodes": 1, "services": 1, "endpointslices": 1}
	lists, watches, types := f.typed.counts()
	require.Equal(t, once, lists)
	require.Equal(t, once, watches, "informers begin with a watch that sends the state, and have no other")
	require.Equal(t, []string{"application/vnd.kubernetes.protobuf;stream=watch"}, types)
	lists, watches, types = f.custom.counts()
	require.Equal(t, map[string]int{"gadgets": 1}, lists)
	require.Equal(t, map[string]int{"gadgets": 1}, watches)
	require.Equal(t, []string{"application/json"}, types)
}

// ages are in tables of kubectl, and pass.
var ages = regexp.MustCompile(`\b\d+[smh](\d+[smh])?\b`)

// testKubectl asks both for the same.
func testKubectl(t *testing.T, c *relayed) {
	for _, of := range []string{
		"get pods -A", "get pods -n lab -l app=web -o wide", "get pods -n lab -l 'app in (web,gated)' -o name", "get pods -A -o yaml", "get pod gated -n lab -o json",
		"get pods -A --field-selector spec.nodeName=" + nodes.Name(0) + " -o name", "get pods -A --field-selector metadata.name=gated,status.phase=Pending",
		"get nodes -o wide", "get services,endpointslices -A", "get gadgets -n lab", "get gd -A --field-selector spec.color=red -o name", "get gadgets -A --field-selector spec.color=red",
		"get pods -A --chunk-size=3 -o name", "get pods -n lab --sort-by=.metadata.uid", "explain pods.spec.nodeName",
		"get pod none -n lab", "get nothing", "get gadgets -A --field-selector spec.size=1",
	} {
		require.EventuallyWithT(t, func(same *assert.CollectT) { // until nothing changes in between
			want, _ := c.try("kubectl " + of)
			got, _ := c.through.try("kubectl " + of)
			require.Equal(same, ages.ReplaceAllString(want, "AGE"), ages.ReplaceAllString(got, "AGE"))
		}, patience/4, pollInterval, "kubectl %s", of)
	}
	require.Regexp(t, `(?m)^NAME +STATUS +ROLES +AGE +VERSION`, c.through.sh(t, "kubectl get nodes"))
	require.Regexp(t, `(?m)^NAME +COLOR`, c.through.sh(t, "kubectl -n lab get gadgets"))

	resources := c.through.sh(t, "kubectl api-resources --sort-by=name")
	var want []string
	for line := range strings.Lines(c.sh(t, "kubectl api-resources --sort-by=name")) {
		if regexp.MustCompile(`^(NAME|pods|nodes|services|endpointslices|gadgets) .*(v1|KIND)`).MatchString(line) && !strings.Contains(line, "metrics.k8s.io") {
			want = append(want, strings.Join(strings.Fields(line), " "))
		}
	}
	var got []string
	for line := range strings.Lines(resources) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	require.Equal(t, want, got)

	for _, watched := range []string{"", " -o name", " -o json"} {
		require.NotEmpty(t, c.through.sh(t, `: > watched
			kubectl -n lab get pods -l app=gated -w`+watched+` > watched & watch=$!
			trap 'kill $watch' EXIT
			until grep -q gated watched; do kubectl get --raw /livez > /dev/null; done
			before=$(wc -l < watched)
			KUBECONFIG=`+c.kubeconfig+` kubectl -n lab annotate pod gated watched=now --overwrite
			until [ "$(wc -l < watched)" -gt "$before" ]; do kubectl get --raw /livez > /dev/null; done
			KUBECONFIG=`+c.kubeconfig+` kubectl -n lab annotate pod gated watched-`))
	}

	// The wait begins before the pod is ready, and ends by an event.
	out := c.through.sh(t, `: > waited
		kubectl -n lab wait --for=condition=Ready pod/gated --timeout=3m -v=8 > waited 2> waiting & wait=$!
		until grep -q 'watch=true' waiting; do kubectl get --raw /livez > /dev/null; done
		KUBECONFIG=`+c.kubeconfig+` kubectl -n lab patch pod gated --type=json -p '[{"op":"remove","path":"/spec/schedulingGates"}]'
		wait $wait
		cat waited`)
	require.Contains(t, out, "pod/gated condition met")
	out = c.through.sh(t, `kubectl -n lab wait --for=delete pod/gated --timeout=3m & wait=$!
		KUBECONFIG=`+c.kubeconfig+` kubectl -n lab delete pod gated --wait=false
		wait $wait`)
	require.Contains(t, out, "gated")
	c.apply(t, gated)
}

// change is what happened to an object.
type happened struct{ what, key, version string }

// testControllerRuntime reads by controller-runtime's cache, and compares the events of its
// informer with etcd's history.
func testControllerRuntime(t *testing.T, c *relayed) {
	asked := &requests{}
	base := config(t, c.through.kubeconfig)
	base.Wrap(asked.wrap)
	reader, err := ctrlcache.New(base, ctrlcache.Options{Scheme: clientscheme.Scheme})
	require.NoError(t, err)
	const byNode = "spec.nodeName"
	require.NoError(t, reader.IndexField(within(t), &corev1.Pod{}, byNode, func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- reader.Start(ctx) }() // ends with ctx
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	require.True(t, reader.WaitForCacheSync(within(t)))
	informer, err := reader.GetInformer(within(t), &corev1.Pod{})
	require.NoError(t, err)
	var mu sync.Mutex
	var got []happened
	begun := false
	note := func(what string, o any) {
		m, err := meta.Accessor(o)
		if err != nil {
			what += ": " + err.Error()
			m = &metav1.ObjectMeta{}
		}
		mu.Lock()
		defer mu.Unlock()
		if begun && m.GetNamespace() == "lab" {
			got = append(got, happened{what, m.GetName(), m.GetResourceVersion()})
		}
	}
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { note("added", o) }, UpdateFunc: func(_, o any) { note("modified", o) }, DeleteFunc: func(o any) { note("deleted", o) },
	})
	require.NoError(t, err)
	require.True(t, cache.WaitForCacheSync(within(t).Done(), handler.HasSynced))

	// From one pod to another: the history between is the same.
	direct := c.direct(t).CoreV1().Pods("lab")
	mark := func(name string) int64 {
		made, err := direct.Create(within(t), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "lab"}, Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/gate"}}, Containers: []corev1.Container{{Name: "c", Image: "i"}},
		}}, metav1.CreateOptions{})
		require.NoError(t, err)
		until(t, name, func() bool {
			return reader.Get(within(t), client.ObjectKey{Namespace: "lab", Name: name}, &corev1.Pod{}) == nil
		})
		at, err := strconv.ParseInt(made.ResourceVersion, 10, 64)
		require.NoError(t, err)
		return at
	}
	c.settle(t)
	mu.Lock()
	begun = true
	mu.Unlock()
	from := mark("mark-1")
	c.change(t, "b")
	c.settle(t)
	to := mark("mark-2")
	want := c.history(t, "/registry/pods/lab/", from, to)
	require.Greater(t, len(want), 60)
	until(t, "the last event", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Contains(got, want[len(want)-1])
	})
	mu.Lock()
	require.Equal(t, want, got)
	mu.Unlock()

	var pods corev1.PodList
	require.NoError(t, reader.List(within(t), &pods, client.MatchingFields{byNode: nodes.Name(0)}))
	listed, err := c.direct(t).CoreV1().Pods("").List(within(t), metav1.ListOptions{FieldSelector: byNode + "=" + nodes.Name(0)})
	require.NoError(t, err)
	require.NotEmpty(t, listed.Items)
	require.Len(t, pods.Items, len(listed.Items))
	g := &unstructured.Unstructured{}
	g.SetGroupVersionKind(gadgetsResource.GroupVersion().WithKind("Gadget"))
	require.NoError(t, reader.Get(within(t), client.ObjectKey{Namespace: "lab", Name: "g1"}, g))
	require.Equal(t, "red", g.Object["spec"].(map[string]any)["color"])
	_, _, types := asked.counts()
	require.Contains(t, types, "application/json")
}

// settle waits until no pod is on its way, so that no event comes by itself.
func (c *relayed) settle(t *testing.T) {
	t.Helper()
	c.eventually(t, `kubectl -n lab get pods -l app!=gated --field-selector status.phase!=Running -o name | grep -v mark | wc -l
		kubectl -n lab get pods -o jsonpath='{.items[?(@.metadata.deletionTimestamp)].metadata.name}'
		kubectl -n lab get deployment web -o jsonpath='{.status.readyReplicas}'`, "0\n6")
}

// history returns what happened under a prefix in these versions.
func (c *relayed) history(t *testing.T, prefix string, from, to int64) (all []happened) {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	for response := range c.etcd.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(from)) {
		require.NoError(t, response.Err())
		for _, e := range response.Events {
			what := "modified"
			switch {
			case e.IsCreate():
				what = "added"
			case e.Type == clientv3.EventTypeDelete:
				what = "deleted"
			}
			all = append(all, happened{what, strings.TrimPrefix(string(e.Kv.Key), prefix), strconv.FormatInt(e.Kv.ModRevision, 10)})
			if e.Kv.ModRevision >= to {
				return all
			}
		}
	}
	t.Fatal("etcd's history ends")
	return nil
}

// TestRelayDemo runs what make relay-demo does, twice in one folder, and all that it says
// to try.
func TestRelayDemo(t *testing.T) {
	path, err := kubectl.Path()
	require.NoError(t, err)
	t.Setenv("PATH", filepath.Dir(path)+string(os.PathListSeparator)+os.Getenv("PATH"))
	path, err = relay.Path()
	require.NoError(t, err)
	dir := t.TempDir()
	for range 2 {
		c := &cluster{dir: t.TempDir()}
		demo := c.run(t, kubernetes, "relay", "--nodes=2", "--relay="+path, "--dir="+dir)
		until(t, "all runs", func() bool { return strings.Contains(demo.log.String(), "2 nodes have registered") || exited(demo) })
		require.False(t, exited(demo), demo.log.String())
		names, tried := "shopt -s expand_aliases\n", 0
		for line := range strings.Lines(demo.log.String()) {
			command, note, _ := strings.Cut(line, "#")
			switch first, _, _ := strings.Cut(strings.TrimSpace(line), " "); {
			case !strings.HasPrefix(line, "  "), strings.Contains(command, " -w"), first == "tail": // the last two don't end
			case first == "export", first == "alias":
				names += line
			case strings.Contains(note, "refused"):
				out, err := c.try(names + command)
				require.Error(t, err, line)
				require.Regexp(t, "ask the upstream, https://|Forbidden", out, line)
				tried++
			default:
				c.eventually(t, names+command, "")
				tried++
			}
		}
		require.Equal(t, 11, tried)
		require.Equal(t, "50\n", c.sh(t, names+"relay get pods -l app=web -o name | wc -l"))
		demo.interrupt(t)
		require.Contains(t, demo.log.String(), "ending the cluster")
		_, err := c.try(names + "relay get --raw /livez")
		require.Error(t, err)
	}
}

// exited reports whether a process has ended.
func exited(s *process) bool {
	select {
	case <-s.exited:
		return true
	default:
		return false
	}
}
