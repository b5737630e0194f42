// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
	"github.com/kube-watchcache/watchcache/integration/internal/proxy"
)

// fill creates so many devices.
func fill(t *testing.T, client *versioned.Clientset, n int, prefix string) {
	t.Helper()
	for i := range n {
		create(t, client, device(fmt.Sprintf("a/%s-%d", prefix, i)))
	}
}

// wholeLists returns the requests that read more than one object.
func wholeLists(requests []string) (lists []string) {
	for _, r := range requests {
		if !strings.Contains(r, "limit=1&") && !strings.HasSuffix(r, "limit=1") && (!strings.Contains(r, "watch=") || strings.Contains(r, "sendInitialEvents=true")) {
			lists = append(lists, r)
		}
	}
	return lists
}

// While the upstream is gone, reads at any version and watches go on, consistent ones fail
// with a reason, and readiness says so. When it is back nobody lists.
func TestUpstreamGone(t *testing.T) {
	for name, gone := range map[string]func(*proxy.Proxy){
		"refuses": func(p *proxy.Proxy) { p.Refuse(); p.Cut() },
		"silent":  func(p *proxy.Proxy) { p.Silence() },
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			u := startUpstream(t, apiserver.Ours)
			fill(t, u.direct, 5, "before")
			// The relay keeps its decisions about alice: it can't ask again.
			r := u.startRelay(t, "--watch-cache-storage-timeout=2s", "--authorization-webhook-cache-authorized-ttl=1h", "--authentication-token-webhook-cache-ttl=1h")
			client := r.devices(t, "alice")
			for _, known := range []string{path, "/metrics", "/readyz"} {
				code, body := r.ask(t, "alice", known)
				require.Equal(t, http.StatusOK, code, body)
			}
			all, stop := follow(t, client, 3)
			defer stop()
			have(t, all, u.direct)
			u.requests()

			gone(u.network)
			code, body := r.ask(t, "alice", path) // client-go tries ten times
			require.Equal(t, http.StatusGatewayTimeout, code, body)
			require.Regexp(t, "the upstream of devices.fleet.example.com gives no answer|storage has not answered", body)
			list, err := client.FleetV1().Devices("").List(within(t), metav1.ListOptions{ResourceVersion: "0"})
			require.NoError(t, err)
			require.Len(t, list.Items, 5)
			old, err := client.FleetV1().Devices("").List(within(t), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
			require.NoError(t, err)
			require.Len(t, old.Items, 5)
			until(t, "readiness says that the upstream is gone", func() bool {
				code, body := r.ask(t, "alice", "/readyz")
				return code == http.StatusInternalServerError && strings.Contains(body, "[-]upstream")
			})
			until(t, "a metric says for how long", func() bool {
				_, body := r.ask(t, "alice", "/metrics")
				for line := range strings.Lines(body) {
					if strings.HasPrefix(line, "watchcache_storage_silence_seconds{") && !strings.HasSuffix(line, "} 0\n") {
						return true
					}
				}
				return false
			})
			fill(t, u.direct, 5, "meanwhile")
			u.network.Heal()
			have(t, all, u.direct)
			until(t, "the relay is ready", func() bool { code, _ := r.ask(t, "alice", "/readyz"); return code == http.StatusOK })
			for n, i := range all {
				require.Equal(t, 1, i.lists(), "informer %d", n)
				require.Equal(t, 1, i.watches(), "informer %d", n)
			}
			// The consistent read went upstream in the end, and may have come there late.
			require.Empty(t, slices.DeleteFunc(wholeLists(u.requests()), func(r string) bool { return r == path }))
		})
	}
}

// The informers of a relay that is killed resume at another one where they were, and the
// upstream sees no more of them than before.
func TestRelayIsKilled(t *testing.T) {
	noLeaks(t)
	u := startUpstream(t, apiserver.Ours)
	fill(t, u.direct, 5, "before")
	first, second := u.startRelay(t), u.startRelay(t)
	address, err := proxy.Listen(strings.TrimPrefix(first.host, "https://"), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, address.Close()) }()
	// One certificate would be behind one address; each of the two is for it.
	at := relay{host: "https://" + address.Address(), dir: first.dir}
	config := at.config("alice")
	config.Insecure, config.CAFile = true, ""
	client, err := versioned.NewForConfigAndClient(config, apiserver.Connect(t, config))
	require.NoError(t, err)
	all, stop := follow(t, client, 50)
	defer stop()
	fill(t, u.direct, 5, "later")
	have(t, all, u.direct)
	u.requests()

	first.kill()
	fill(t, u.direct, 5, "meanwhile")
	address.Forward(strings.TrimPrefix(second.host, "https://"))
	have(t, all, u.direct)
	for n, i := range all {
		require.Equal(t, 1, i.lists(), "informer %d", n)
	}
	requests := u.requests()
	require.Empty(t, wholeLists(requests))
	require.Less(t, len(requests), 20, "%q", requests)
}

// An upstream that restarts is resumed, and one that can't be, because it has forgotten what
// happened meanwhile, is listed again: the state is right in the end.
func TestUpstreamRestarts(t *testing.T) {
	for _, forgets := range []bool{false, true} {
		t.Run(map[bool]string{false: "resumes", true: "has forgotten"}[forgets], func(t *testing.T) {
			noLeaks(t)
			u := startUpstream(t, apiserver.Ours)
			fill(t, u.direct, 5, "before")
			r := u.startRelay(t)
			all, stop := follow(t, r.devices(t, "alice"), 3)
			defer stop()
			have(t, all, u.direct)

			u.network.Refuse()
			u.network.Cut()
			fill(t, u.direct, 5, "meanwhile")
			u.process.Kill()
			if forgets {
				put, err := u.etcd.Put(within(t), "/unrelated", "")
				require.NoError(t, err)
				_, err = u.etcd.Compact(within(t), put.Header.Revision, clientv3.WithCompactPhysical())
				require.NoError(t, err)
			}
			require.NoError(t, u.process.Start(within(t)))
			u.requests()
			u.network.Heal()
			have(t, all, u.direct)
			fill(t, u.direct, 5, "later")
			have(t, all, u.direct)
			if !forgets {
				require.Empty(t, wholeLists(u.requests()))
				for n, i := range all {
					require.Equal(t, 1, i.lists(), "informer %d", n)
				}
			}
		})
	}
}

// An upstream that is restored from a backup is behind its clients: watches end, and nobody
// sees a state of both histories.
func TestUpstreamIsRestored(t *testing.T) {
	noLeaks(t)
	u, backup := startUpstream(t, apiserver.Ours), startUpstream(t, apiserver.Ours)
	fill(t, u.direct, 20, "lost")
	fill(t, backup.direct, 3, "kept")
	r := u.startRelay(t)
	client := r.devices(t, "alice")
	all, stop := follow(t, client, 3)
	defer stop()
	have(t, all, u.direct)
	list, err := client.FleetV1().Devices("").List(within(t), metav1.ListOptions{})
	require.NoError(t, err)
	w, err := client.FleetV1().Devices("").Watch(within(t), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	require.NoError(t, err)
	defer w.Stop()

	u.network.Forward(backup.front.Listener.Addr().String())
	u.network.Cut()
	for event := range w.ResultChan() {
		require.Equal(t, watch.Error, event.Type, "%v", event.Object)
	}
	have(t, all, backup.direct)
	w, err = client.FleetV1().Devices("").Watch(within(t), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	require.NoError(t, err)
	defer w.Stop()
	event := <-w.ResultChan()
	require.Equal(t, watch.Error, event.Type)
	require.True(t, apierrors.IsResourceExpired(apierrors.FromObject(event.Object)) || apierrors.IsGone(apierrors.FromObject(event.Object)), "%v", event.Object)
	fill(t, backup.direct, 3, "later")
	have(t, all, backup.direct)
}

// A resource that disappears is not there for clients either, and comes back with what it
// has then.
func TestResourceDisappears(t *testing.T) {
	noLeaks(t)
	u := startUpstream(t, apiserver.Ours)
	fill(t, u.direct, 3, "before")
	r := u.startRelay(t)
	client := r.devices(t, "alice")
	all, stop := follow(t, client, 3)
	defer stop()
	have(t, all, u.direct)
	w, err := client.FleetV1().Devices("").Watch(within(t), metav1.ListOptions{})
	require.NoError(t, err)
	defer w.Stop()

	u.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case strings.HasPrefix(r.URL.Path, path):
			http.NotFound(w, r)
		case r.URL.Path == "/apis/fleet.example.com/v1":
			_, _ = w.Write([]byte(`{"kind":"APIResourceList","groupVersion":"fleet.example.com/v1","resources":[]}`))
		default:
			return false
		}
		return true
	})
	u.network.Cut()
	for range w.ResultChan() { // until it ends
	}
	until(t, "the resource is not there", func() bool {
		_, err := client.FleetV1().Devices("").List(within(t), metav1.ListOptions{ResourceVersion: "0"})
		return apierrors.IsNotFound(err)
	})
	_, err = client.FleetV1().Devices("a").Get(within(t), "before-0", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	require.ErrorContains(t, err, "the upstream has no resource devices.fleet.example.com any more")

	require.NoError(t, u.direct.FleetV1().Devices("a").DeleteCollection(within(t), metav1.DeleteOptions{}, metav1.ListOptions{}))
	fill(t, u.direct, 2, "later")
	u.intercept(nil)
	until(t, "the resource is back", func() bool {
		_, err := client.FleetV1().Devices("").List(within(t), metav1.ListOptions{})
		return err == nil
	})
	have(t, all, u.direct)
	have(t, all, client)
}
