// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"encoding/json"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
	"github.com/kube-watchcache/watchcache/integration/internal/judge"
)

const path = "/apis/fleet.example.com/v1/devices"

// within returns a context that ends with the test's patience.
func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func device(name string, labels ...string) *fleetv1.Device {
	namespace, name, _ := strings.Cut(name, "/")
	d := &fleetv1.Device{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}}, Spec: fleetv1.DeviceSpec{Model: "m", Owner: "o", Zone: "z"}}
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		d.Labels[key] = value
	}
	return d
}

func create(t testing.TB, client *versioned.Clientset, d *fleetv1.Device) *fleetv1.Device {
	t.Helper()
	created, err := client.FleetV1().Devices(d.Namespace).Create(within(t), d, metav1.CreateOptions{})
	require.NoError(t, err)
	return created
}

// A client gets of the relay what it gets of the upstream, and a clear answer to what the
// relay does not do.
func TestServes(t *testing.T) {
	for _, cache := range []string{apiserver.Ours, apiserver.Shipped} {
		t.Run(cache, func(t *testing.T) {
			noLeaks(t)
			u := startUpstream(t, cache)
			for _, name := range []string{"a/x", "a/y", "b/x", "b/y", "b/z"} {
				create(t, u.direct, device(name, "name="+name[2:]))
			}
			r := u.startRelay(t)
			client := r.devices(t, "alice")

			for _, selector := range []string{"", "name=x"} {
				for _, namespace := range []string{"", "a"} {
					opts := metav1.ListOptions{LabelSelector: selector}
					want, err := u.direct.FleetV1().Devices(namespace).List(within(t), opts)
					require.NoError(t, err)
					got, err := client.FleetV1().Devices(namespace).List(within(t), opts)
					require.NoError(t, err)
					require.Equal(t, judge.ItemsOf(want), judge.ItemsOf(got))
					require.Equal(t, want.ListMeta, got.ListMeta)
				}
			}
			page, err := client.FleetV1().Devices("").List(within(t), metav1.ListOptions{Limit: 2})
			require.NoError(t, err)
			require.Len(t, page.Items, 2)
			rest, err := u.direct.FleetV1().Devices("").List(within(t), metav1.ListOptions{Continue: page.Continue})
			require.NoError(t, err, "the upstream goes on with the relay's page")
			require.Len(t, rest.Items, 3)
			_, err = client.FleetV1().Devices("a").Get(within(t), "none", metav1.GetOptions{})
			require.True(t, apierrors.IsNotFound(err), "%v", err)

			// A watch begins with the state, which is current, and goes on.
			true := true
			w, err := client.FleetV1().Devices("").Watch(within(t), metav1.ListOptions{SendInitialEvents: &true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true})
			require.NoError(t, err)
			defer w.Stop()
			for range 5 {
				require.Equal(t, watch.Added, (<-w.ResultChan()).Type)
			}
			require.Equal(t, watch.Bookmark, (<-w.ResultChan()).Type)
			created := create(t, u.direct, device("a/later"))
			event := <-w.ResultChan()
			require.Equal(t, watch.Added, event.Type)
			require.Equal(t, judge.ItemOf(created), judge.ItemOf(event.Object.(*fleetv1.Device)))

			// Forms are the upstream's.
			const table = "Accept:application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
			code, got := r.ask(t, "alice", path, table)
			require.Equal(t, http.StatusOK, code, got)
			require.Contains(t, got, `"kind":"Table"`)
			require.Contains(t, got, "columnDefinitions")
			code, got = r.ask(t, "alice", path+"?resourceVersion=0", "Accept:application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
			require.Equal(t, http.StatusOK, code, got)
			require.Contains(t, got, "PartialObjectMetadataList")
			code, got = r.ask(t, "alice", path, "Accept:application/vnd.kubernetes.protobuf")
			require.Equal(t, http.StatusNotAcceptable, code, got)
			code, got = r.ask(t, "alice", "/openapi/v3/apis/fleet.example.com/v1")
			require.Equal(t, http.StatusOK, code, got)
			require.Contains(t, got, "DeviceSpec")
			code, got = r.send(t, "alice", http.MethodPost, "/openapi/v3", "")
			require.Equal(t, http.StatusNotFound, code, got)

			// Only what is served can be found, and anything else is refused by name.
			code, got = r.ask(t, "alice", "/apis/fleet.example.com/v1")
			require.Equal(t, http.StatusOK, code)
			var found metav1.APIResourceList
			require.NoError(t, json.Unmarshal([]byte(got), &found))
			require.Len(t, found.APIResources, 1)
			require.Equal(t, metav1.Verbs{"get", "list", "watch"}, found.APIResources[0].Verbs)
			for _, refused := range []struct {
				method, path string
				code         int
			}{
				{http.MethodPost, "/apis/fleet.example.com/v1/namespaces/a/devices", http.StatusMethodNotAllowed},
				{http.MethodDelete, "/apis/fleet.example.com/v1/namespaces/a/devices/x", http.StatusMethodNotAllowed},
				{http.MethodGet, "/apis/fleet.example.com/v1/namespaces/a/devices/x/status", http.StatusMethodNotAllowed},
				{http.MethodGet, "/apis/fleet.example.com/v1beta1/devices", http.StatusNotFound},
				{http.MethodGet, "/api/v1/pods", http.StatusNotFound},
				{http.MethodGet, "/api/v1/namespaces/a", http.StatusMethodNotAllowed}, // kubectl would report a 404 instead of an object's
				{http.MethodGet, "/api/v1/namespaces/a/pods/x/log", http.StatusNotFound},
			} {
				code, got := r.send(t, "alice", refused.method, refused.path, "{}")
				require.Equal(t, refused.code, code, "%s %s: %s", refused.method, refused.path, got)
				require.Contains(t, got, "ask the upstream, https://"+u.network.Address(), "%s %s", refused.method, refused.path)
			}
			code, _ = r.ask(t, "alice", "/debug/watchcache")
			require.Equal(t, http.StatusOK, code)
			code, got = r.ask(t, "alice", "/metrics")
			require.Equal(t, http.StatusOK, code)
			require.Contains(t, got, `watchcache_upstream_proofs_total{group="fleet.example.com",outcome="held",resource="devices"}`)
			code, got = r.ask(t, "alice", "/readyz")
			require.Equal(t, http.StatusOK, code, got)
		})
	}
}

// The relay starts only if the upstream has each resource, each is named once, and secrets
// are allowed.
func TestRefusesToStart(t *testing.T) {
	u := startUpstream(t, apiserver.Ours)
	u.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		switch r.URL.Path {
		case "/api":
			_, _ = w.Write([]byte(`{"kind":"APIVersions","versions":["v1"]}`))
		case "/api/v1":
			_, _ = w.Write([]byte(`{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"secrets","namespaced":true,"kind":"Secret","verbs":["get","list","watch"]}]}`))
		default:
			return false
		}
		return true
	})
	r := u.startRelay(t)
	for resources, want := range map[string]string{
		"secrets":                             "secrets need --allow-secrets",
		"secrets.v1.":                         "secrets need --allow-secrets",
		"devices.fleet.example.com,gone.apps": "--resources gone.apps: the upstream does not serve it",
		"devices":                             "--resources devices: the upstream does not serve it",
		"devices.fleet.example.com,devices.v1.fleet.example.com": "it is named twice",
		"": "--resources is required",
	} {
		out, err := exec.Command(r.path, replaced(r.args, "--resources="+resources)...).CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), want)
	}
}

// replaced returns the arguments with one in the place of that of the same flag.
func replaced(args []string, arg string) (out []string) {
	name, _, _ := strings.Cut(arg, "=")
	for _, a := range args {
		if !strings.HasPrefix(a, name+"=") {
			out = append(out, a)
		}
	}
	return append(out, arg)
}

// Each request is authorized by the upstream's decision about it.
func TestRights(t *testing.T) {
	noLeaks(t)
	u := startUpstream(t, apiserver.Ours)
	for _, name := range []string{"a/x", "a/y", "b/x"} {
		create(t, u.direct, device(name))
	}
	inA := func(s authorizationv1.SubjectAccessReviewSpec) bool {
		return s.User == "alice" || (s.ResourceAttributes != nil && s.ResourceAttributes.Namespace == "a")
	}
	u.allow(inA)
	r := u.startRelay(t)
	forbidden := func(user, path string) {
		t.Helper()
		code, body := r.ask(t, user, path)
		require.Equal(t, http.StatusForbidden, code, body)
		require.NotContains(t, body, `"spec"`)
	}
	allowed := func(user, path string) {
		t.Helper()
		code, body := r.ask(t, user, path)
		require.Equal(t, http.StatusOK, code, body)
	}
	const a, b = "/apis/fleet.example.com/v1/namespaces/a/devices", "/apis/fleet.example.com/v1/namespaces/b/devices"
	for _, of := range []string{path, a, b, b + "/x", path + "?fieldSelector=metadata.namespace%3Da"} {
		allowed("alice", of)
	}
	allowed("bob", a)
	allowed("bob", a+"/x")
	for _, of := range []string{path, b, b + "/x", b + "?watch=1", path + "?watch=1", path + "?fieldSelector=metadata.namespace%3Da", "/debug/watchcache", "/metrics", "/openapi/v3"} {
		forbidden("bob", of)
	}
	code, _ := r.ask(t, "mallory", a)
	require.Equal(t, http.StatusUnauthorized, code)
	// Tables and unknown fields go upstream with the relay's rights: the client's come first.
	code, body := r.ask(t, "bob", b, "Accept:application/json;as=Table;v=v1;g=meta.k8s.io")
	require.Equal(t, http.StatusForbidden, code, body)
	forbidden("bob", b+"?fieldSelector=spec.owner%3Do")
	code, body = r.ask(t, "bob", b+"/x", "Impersonate-User:alice")
	require.Equal(t, http.StatusForbidden, code, body)

	// Nothing is forwarded with the relay's rights whose path a proxy could shorten.
	u.requests()
	for _, elsewhere := range []string{a + "/..", a + "/%2e%2e", a + "//x", a + "/x%2f.."} {
		_, body := r.ask(t, "alice", elsewhere, "Accept:application/json;as=Table;v=v1;g=meta.k8s.io")
		require.NotContains(t, body, "columnDefinitions", elsewhere)
	}
	require.NotContains(t, strings.Join(u.requests(), "\n"), a)
}

// until waits until a condition holds.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	require.Eventually(t, holds, patience, 50*time.Millisecond, what)
}

// A request for another resource is forwarded with the client's own token.
func TestPassThrough(t *testing.T) {
	noLeaks(t)
	u := startUpstream(t, apiserver.Ours)
	r := u.startRelay(t, "--pass-through")
	client := r.devices(t, "alice")
	created := create(t, client, device("a/x"))
	got, err := client.FleetV1().Devices("a").Get(within(t), "x", metav1.GetOptions{ResourceVersion: created.ResourceVersion})
	require.NoError(t, err, "a read waits for the version of the write")
	require.Equal(t, judge.ItemOf(created), judge.ItemOf(got))
	created.Status.Phase = "Ready"
	_, err = client.FleetV1().Devices("a").UpdateStatus(within(t), created, metav1.UpdateOptions{})
	require.NoError(t, err)
	_, err = r.devices(t, "bob").FleetV1().Devices("a").Create(within(t), device("a/y"), metav1.CreateOptions{})
	require.True(t, apierrors.IsForbidden(err), "the upstream decides: %v", err)
	code, body := r.ask(t, "alice", "/apis")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, "v1beta1", "discovery is the upstream's")
	code, body = r.send(t, "", http.MethodPost, "/apis/fleet.example.com/v1/namespaces/a/devices", "{}")
	require.Equal(t, http.StatusForbidden, code, body)
}
