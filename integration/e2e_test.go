// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kube-watchcache/watchcache/debug"
	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/integration/etcdserver"
)

// pollInterval is how often something is looked at that gives no signal.
const pollInterval = 20 * time.Millisecond

// shipped puts the server on the cacher of k8s.io/apiserver.
const shipped = "--watch-cache-implementation=shipped"

// TestEndToEnd drives the example server's binary as its users do: with the etcd that it
// has inside, and with one of its own. Each server has a successor, the first one's is on
// the shipped cacher.
func TestEndToEnd(t *testing.T) {
	_, err := apiserverProgram.Path() // before the goroutines are counted
	require.NoError(t, err)
	t.Run("etcd inside", func(t *testing.T) {
		noLeaks(t)
		endToEnd(t, nil, []string{shipped})
	})
	t.Run("etcd of its own", func(t *testing.T) {
		noLeaks(t)
		etcd := etcdserver.Start(t, etcdserver.Config{Sync: true})
		own := []string{"--standalone", "--etcd-servers=" + strings.Join(etcd.Endpoints(), ",")}
		endToEnd(t, own, own)
	})
	t.Run("shipped", func(t *testing.T) {
		noLeaks(t)
		s := startServer(t, t.TempDir(), "--secure-port="+lastingPort(t), shipped)
		t.Run("typed clients", func(t *testing.T) { testTypedClients(t, s) })
		t.Run("interrupt", func(t *testing.T) { testInterrupt(t, s) })
	})
}

// endToEnd runs all steps on one server and its successor, which may have other flags.
func endToEnd(t *testing.T, args, successor []string) {
	runDir := t.TempDir()
	s := startServer(t, runDir, append(args, "--secure-port="+lastingPort(t))...)

	t.Run("typed clients", func(t *testing.T) { testTypedClients(t, s) })
	t.Run("malformed versions", func(t *testing.T) { testMalformedVersions(t, s) })
	t.Run("metrics", func(t *testing.T) { testMetrics(t, s) })
	var next *apiserver
	outer := t
	t.Run("restart", func(t *testing.T) { next = testRestart(outer, t, s, runDir, successor...) })
	if next == nil {
		return
	}
	t.Run("interrupt", func(t *testing.T) { testInterrupt(t, next) })
}

// lastingPort finds a port that is free for a server and for its successor: one below
// those that the system gives to connections and to listeners at port 0, which another
// test might get between the two.
func lastingPort(t *testing.T) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(20_000 + rand.IntN(12_000))
		listener, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err == nil {
			require.NoError(t, listener.Close())
			return port
		}
	}
	require.FailNow(t, "no port is free")
	return ""
}

// noLeaks fails the test for each goroutine that it starts from now on and
// that outlives everything that is cleaned up.
func noLeaks(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

// clientsetFor gives a typed client whose connections end with the test.
func clientsetFor(t *testing.T, s *apiserver) *versioned.Clientset {
	t.Helper()
	client, err := versioned.NewForConfigAndClient(s.config, s.client(t))
	require.NoError(t, err)
	return client
}

// device gives a valid device that has not been created.
func device(namespace, name, zone string) *fleetv1.Device {
	return &fleetv1.Device{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"kind": "sensor"}},
		Spec:       fleetv1.DeviceSpec{Zone: zone, Owner: "field-ops", Model: "Arbor S96"},
	}
}

// create makes n devices, called PREFIX-000 and so on.
func create(t *testing.T, client versioned.Interface, namespace, prefix string, n int) []*fleetv1.Device {
	t.Helper()
	var out []*fleetv1.Device
	for i := range n {
		d, err := client.FleetV1().Devices(namespace).Create(within(t), device(namespace, fmt.Sprintf("%s-%03d", prefix, i), fmt.Sprintf("zone-%d", i%3)), metav1.CreateOptions{})
		require.NoError(t, err)
		out = append(out, d)
	}
	return out
}

// eventually polls until condition holds. Errors are taken for "not yet": the
// server may be away.
func eventually(t *testing.T, what string, condition func(ctx context.Context) (bool, error)) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, patience, true, func(ctx context.Context) (bool, error) {
		ok, err := condition(ctx)
		last = err
		return ok && err == nil, nil
	})
	require.NoError(t, err, "%s; last error: %v", what, last)
}

// testMetrics looks for the cache's own metrics beside the server's.
func testMetrics(t *testing.T, s *apiserver) {
	body := get(t, s.client(t), s.url+"/metrics").body
	for _, name := range []string{"watchcache_objects", "watchcache_resource_version", "watchcache_events_total", "watchcache_reads_total"} {
		require.Contains(t, body, name+`{`, "the cache's metrics are not served")
	}
	require.Contains(t, body, `watchcache_objects{group="fleet.example.com",resource="devices"}`)
	require.Contains(t, get(t, s.client(t), s.url+debug.Path+"?format=json").body, "devices")
	for _, name := range []string{"apiserver_watch_cache_initializations_total", "apiserver_watch_cache_resource_version", "watch_cache_capacity"} {
		written := func(context.Context) (bool, error) { // once a second
			return strings.Contains(get(t, s.client(t), s.url+"/metrics").body, name+`{group="fleet.example.com",resource="devices"}`), nil
		}
		require.NoError(t, wait.PollUntilContextTimeout(t.Context(), pollInterval, 3*time.Minute, true, written), "the shipped cacher's %s is not written", name)
	}
	require.Contains(t, body, "apiserver_request_total")
}
