// SPDX-License-Identifier: Apache-2.0

package debugpage

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-watchcache/watchcache/debug"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
)

// patience is how long a test waits for what must happen, on a loaded machine.
const patience = 2 * time.Minute

const devices = "/apis/fleet.example.com/v1/devices"

func startServer(t *testing.T) *Server {
	t.Helper()
	s, err := Start()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop()) })
	return s
}

// ask sends one request and returns the answer, read.
func ask(t *testing.T, s *Server, user, method, path string, headers ...string) (*http.Response, string) {
	t.Helper()
	client, err := s.Client(user)
	require.NoError(t, err)
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, s.URL+path, nil)
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response, string(body)
}

// report asks for JSON.
func report(t *testing.T, s *Server, user, parameters string) debug.Report {
	t.Helper()
	response, body := ask(t, s, user, http.MethodGet, debug.Path+"?format=json"+parameters)
	require.Equal(t, http.StatusOK, response.StatusCode, body)
	var out debug.Report
	require.NoError(t, json.Unmarshal([]byte(body), &out))
	require.Equal(t, debug.SchemaVersion, out.Schema)
	return out
}

// put stores a device that belongs to a secret project.
func put(s *Server, name string) {
	s.Store.Put("/fleet.example.com/devices/hidden-ns/"+name, &fleet.Device{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: "hidden-ns", Labels: map[string]string{"project": "hidden-project"},
	}})
}

// watch opens a watch as the robot, which ends with the test.
func watch(t *testing.T, s *Server, path string) {
	t.Helper()
	client, err := s.Client(Robot)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, nil)
	require.NoError(t, err)
	request.Header.Set("User-Agent", "access-test/1")
	response, err := client.Do(request)
	require.NoError(t, err)
	t.Cleanup(func() {
		cancel()
		_ = response.Body.Close() // the context has ended it
		client.CloseIdleConnections()
	})
	require.Equal(t, http.StatusOK, response.StatusCode)
}

// The server decides who sees the page: nobody without a certificate, no user
// without the right, and a user with it.
func TestAccess(t *testing.T) {
	s := startServer(t)
	for _, query := range []string{"", "?format=json", "?format=json&values=true"} {
		for user, want := range map[string]int{"": http.StatusUnauthorized, Robot: http.StatusForbidden, Viewer: http.StatusOK, Operator: http.StatusOK} {
			response, body := ask(t, s, user, http.MethodGet, debug.Path+query)
			require.Equal(t, want, response.StatusCode, "%q asks for %q: %s", user, query, body)
			if want != http.StatusOK {
				require.NotContains(t, body, "schema")
				require.NotContains(t, body, "<title>watchcache")
			}
		}
	}
	for path, want := range map[string]int{debug.Path + "/": http.StatusForbidden, debug.Path + "/pods": http.StatusForbidden} {
		response, _ := ask(t, s, Viewer, http.MethodGet, path)
		require.Equal(t, want, response.StatusCode, path)
	}
}

// The page changes nothing, and can't be put into a frame or made to load what is
// not its own.
func TestPageIsReadOnly(t *testing.T) {
	s := startServer(t)
	for _, user := range []string{Viewer, Operator} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
			response, _ := ask(t, s, user, method, debug.Path)
			require.Equal(t, http.StatusForbidden, response.StatusCode, "%s: the right is for get alone", method)
		}
	}
	for _, query := range []string{"", "?format=json", "?limit=all"} {
		response, _ := ask(t, s, Viewer, http.MethodGet, debug.Path+query)
		require.Contains(t, response.Header.Get("Content-Security-Policy"), "default-src 'none'")
		require.Contains(t, response.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'")
		require.Equal(t, "DENY", response.Header.Get("X-Frame-Options"))
		require.Equal(t, "nosniff", response.Header.Get("X-Content-Type-Options"))
		require.Equal(t, "no-store", response.Header.Get("Cache-Control"))
		require.Empty(t, response.Header.Get("Access-Control-Allow-Origin"))
	}
}

// A watch over HTTPS shows with its client. Names, labels and values are shown to
// a user who may list the resource and asks for them, and to nobody else.
func TestWhatIsShown(t *testing.T) {
	s := startServer(t)
	put(s, "hidden-name")
	watch(t, s, devices+"?watch=true&labelSelector=project%3Dhidden-project,size+in+(hidden-size,hidden-other)&fieldSelector=metadata.name%3Dhidden-name")
	watch(t, s, "/apis/fleet.example.com/v1/namespaces/hidden-ns/devices?watch=true")
	require.Eventually(t, func() bool { return report(t, s, Viewer, "").Caches[0].Watchers.Total == 2 }, patience, 10*time.Millisecond)

	for _, query := range []string{"", "&resource=devices.fleet.example.com"} {
		for user, values := range map[string]string{Viewer: "forbidden", Operator: "shown"} {
			response, body := ask(t, s, user, http.MethodGet, debug.Path+"?format=json"+query)
			require.Equal(t, http.StatusOK, response.StatusCode)
			require.NotContains(t, body, "hidden-")
			response, body = ask(t, s, user, http.MethodGet, debug.Path+"?format=json&values=true"+query)
			require.Equal(t, http.StatusOK, response.StatusCode)
			require.Contains(t, body, `"values":"`+values+`"`)
			require.Equal(t, values == "shown", strings.Contains(body, "hidden-"), body)
		}
	}
	cache := report(t, s, Viewer, "&sort=age").Caches[0]
	require.Equal(t, "hidden", cache.Values)
	require.Equal(t, "ready", cache.State)
	require.Equal(t, 1, cache.Holds.Objects)
	first, second := cache.Watchers.Items[0], cache.Watchers.Items[1]
	require.Equal(t, "robot", first.User)
	require.Equal(t, "access-test/1", first.UserAgent)
	require.Contains(t, first.Address, "127.0.0.1:")
	require.Equal(t, debug.Selection{Scope: "object", Labels: "project = …,size in …", Fields: "metadata.name = …"}, first.Selection)
	require.Equal(t, debug.Selection{Scope: "namespace"}, second.Selection)
	shown := report(t, s, Operator, "&sort=age&values=true").Caches[0].Watchers.Items[1]
	require.Equal(t, debug.Selection{Scope: "namespace", Key: "/fleet.example.com/devices/hidden-ns/"}, shown.Selection)
}
