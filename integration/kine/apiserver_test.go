// SPDX-License-Identifier: Apache-2.0

package kine

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/informers/externalversions"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/server"
)

// serve runs the example server on kine until the test ends, and returns what its
// client needs.
func serve(t *testing.T, endpoint string) *rest.Config {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	command := server.NewCommand()
	command.SetArgs([]string{"--etcd-servers=" + endpoint, "--standalone", "--run-dir=" + dir, "--secure-port=0"})
	announced := &announcement{ready: make(chan struct{})}
	command.SetOut(announced)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- command.ExecuteContext(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	select {
	case <-announced.ready:
	case err := <-ended:
		ended <- nil
		require.NoError(t, err, "the server has ended")
	case <-time.After(patience):
		require.FailNow(t, "the server does not start")
	}
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	require.NoError(t, err)
	return config
}

// announcement is closed by the first thing that the server says: that it is
// ready.
type announcement struct {
	once  sync.Once
	ready chan struct{}
}

func (a *announcement) Write(p []byte) (int, error) {
	a.once.Do(func() { close(a.ready) })
	return len(p), nil
}

// notices is what an informer was told, in order.
type notices struct {
	mu   sync.Mutex
	told []string
}

func (n *notices) add(what string, obj any) {
	device, ok := obj.(*fleetv1.Device)
	if !ok {
		what += " of an unknown state"
		device = &fleetv1.Device{}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told = append(n.told, what+" "+device.Name+" "+device.Spec.Zone)
}

func (n *notices) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string(nil), n.told...)
}

// TestAPIServer: a whole API server on kine, and an informer of client-go that
// goes on when kine is killed and started again.
func TestAPIServer(t *testing.T) { onEach(t, testAPIServer) }

func testAPIServer(t *testing.T, db database) {
	dir, err := os.MkdirTemp("", "kine-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	database, socket := db.empty(dir), filepath.Join(dir, "kine.sock")
	var running sync.WaitGroup
	var kill context.CancelFunc
	start := func() {
		var ctx context.Context
		ctx, kill = context.WithCancel(context.Background())
		require.NoError(t, serveKine(ctx, &running, database, socket, serverOptions()...))
	}
	t.Cleanup(func() {
		kill()
		running.Wait()
	})
	start()
	config := serve(t, "unix://"+socket)
	httpClient, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(httpClient.CloseIdleConnections)
	client, err := versioned.NewForConfigAndClient(config, httpClient)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()

	factory := externalversions.NewSharedInformerFactory(client, 0)
	informer := factory.Fleet().V1().Devices()
	var seen notices
	_, err = informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { seen.add("added", obj) },
		UpdateFunc: func(_, obj any) { seen.add("updated", obj) },
		DeleteFunc: func(obj any) { seen.add("deleted", obj) },
	})
	require.NoError(t, err)
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	defer cancel()
	require.True(t, cache.WaitForCacheSync(ctx.Done(), informer.Informer().HasSynced))

	devices := client.FleetV1().Devices("lab")
	a, err := devices.Create(ctx, device("a", "north"), metav1.CreateOptions{})
	require.NoError(t, err)
	a.Spec.Zone = "south"
	_, err = devices.Update(ctx, a, metav1.UpdateOptions{})
	require.NoError(t, err)
	a.Spec.Zone = "west"
	_, err = devices.Update(ctx, a, metav1.UpdateOptions{}) // of what has changed
	require.ErrorContains(t, err, "has been modified")
	want := []string{"added a north", "updated a south"}
	require.EventuallyWithT(t, func(t *assert.CollectT) { require.Equal(t, want, seen.all()) }, patience, 10*time.Millisecond)

	before := relists(t, config, httpClient)
	kill()
	running.Wait()
	start()
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		_, err := devices.Create(ctx, device("b", "east"), metav1.CreateOptions{})
		require.NoError(t, err)
	}, patience, 100*time.Millisecond)
	require.NoError(t, devices.Delete(ctx, "a", metav1.DeleteOptions{}))
	want = append(want, "added b east", "deleted a south")
	require.EventuallyWithT(t, func(t *assert.CollectT) { require.Equal(t, want, seen.all()) }, patience, 10*time.Millisecond)

	list, err := devices.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	informed, err := informer.Lister().List(labels.Everything())
	require.NoError(t, err)
	require.Equal(t, []*fleetv1.Device{&list.Items[0]}, informed)
	require.Equal(t, before, relists(t, config, httpClient))
}

func device(name, zone string) *fleetv1.Device {
	return &fleetv1.Device{
		ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: name},
		Spec:       fleetv1.DeviceSpec{Zone: zone, Owner: "o", Model: "m"},
	}
}

// relists returns how often caches have listed, in all servers of this process.
func relists(t *testing.T, config *rest.Config, client *http.Client) []string {
	t.Helper()
	response, err := client.Get(config.Host + "/metrics")
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	var text bytes.Buffer
	_, err = text.ReadFrom(response.Body)
	require.NoError(t, err)
	counters := regexp.MustCompile(`watchcache_relists_total\{.*\} \d+`).FindAllString(text.String(), -1)
	require.NotEmpty(t, counters)
	return counters
}
