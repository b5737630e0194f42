// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
)

// flood answers requests with "flood" in their query with events or lines without an end.
func flood(w http.ResponseWriter, r *http.Request) bool {
	if !strings.Contains(r.URL.RawQuery, "flood") {
		return false
	}
	for line := bytes.Repeat([]byte("x"), 32<<10); ; {
		if _, err := w.Write(line); err != nil {
			return true
		}
	}
}

// terminate sends SIGTERM to the relay and waits for its end.
func (r *relay) terminate(t *testing.T) {
	t.Helper()
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-r.exited:
	case <-time.After(40 * time.Second): // a server that waits for its clients takes a minute
		require.Fail(t, "the relay has not ended after SIGTERM")
	}
}

// Clients that read nothing of what is forwarded leave room for others, and a server that
// shuts down does not wait for them.
func TestForwardsAreBounded(t *testing.T) {
	noLeaks(t)
	u := startUpstream(t, apiserver.Ours)
	create(t, u.direct, device("a/x"))
	u.allow(func(authorizationv1.SubjectAccessReviewSpec) bool { return true })
	u.intercept(flood)
	r := u.startRelay(t, "--max-requests-inflight=16", "--pass-through")
	config := r.config("bob")
	client := apiserver.Connect(t, config)
	for _, f := range []form{
		{path + "?watch=1&flood", []string{asTable}}, {path + "?watch=1&flood&fieldSelector=spec.owner%3Do", nil},
		{"/api/v1/namespaces/a/pods/x/log?follow=true&flood", nil}, {"/apis/fleet.example.com/v1beta1/devices?watch=1&flood", nil},
	} {
		response := begin(within(t), t, client, http.MethodGet, config.Host+f.path, "", f.headers...)
		require.Equal(t, http.StatusOK, response.StatusCode, f.path)
		defer func() { _ = response.Body.Close() }()
	}
	for _, f := range []form{{path, []string{asTable}}, {"/api/v1/namespaces/a/pods/x/log", nil}} {
		code, body := r.ask(t, "bob", f.path, f.headers...)
		require.Equal(t, http.StatusTooManyRequests, code, body)
	}
	code, body := r.ask(t, "bob", path+"?resourceVersion=0")
	require.Equal(t, http.StatusOK, code, body)
	code, body = r.ask(t, "alice", path, asTable)
	require.Equal(t, http.StatusOK, code, body)
	_, metrics := r.ask(t, "alice", "/metrics")
	require.Equal(t, 4, value(metrics, "watchcache_relay_forwarded_requests"))
	require.Equal(t, 2, value(metrics, "watchcache_relay_refused_forwards_total"))
	r.terminate(t)
}

// A relay before an upstream that is upgraded beyond its Go types reads it as JSON from then
// on: no field is lost, and clients of older versions list.
func TestUpstreamIsUpgraded(t *testing.T) {
	noLeaks(t)
	u := startUpstream(t, apiserver.Ours)
	var upgraded atomic.Bool
	u.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		version, minor, novel := "5", 37, ""
		if upgraded.Load() {
			version, minor, novel = "6", 99, `,"spec":{"novel":"field"}`
		}
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/version":
			_, _ = fmt.Fprintf(w, `{"major":"1","minor":"%d","gitVersion":"v1.%d.0"}`, minor, minor)
		case "/api":
			_, _ = io.WriteString(w, `{"kind":"APIVersions","versions":["v1"]}`)
		case "/api/v1":
			_, _ = io.WriteString(w, `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods","singularName":"pod","namespaced":true,"kind":"Pod","verbs":["get","list","watch"]}]}`)
		case "/api/v1/pods":
			if !r.URL.Query().Has("watch") {
				_, _ = fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"%s"},"items":[{"metadata":{"namespace":"a","name":"x","resourceVersion":"%s"}%s}]}`, version, version, novel)
				break
			}
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		default:
			w.Header().Del("Content-Type")
			return false
		}
		return true
	})
	r := u.startRelay(t, "--resources=pods")
	const pods = "/api/v1/pods?resourceVersion=0"
	code, body := r.ask(t, "alice", pods)
	require.Equal(t, http.StatusOK, code, body)
	require.Contains(t, body, `"resourceVersion":"5"`)
	code, body = r.ask(t, "alice", "/version")
	require.Equal(t, http.StatusOK, code, body)
	require.Contains(t, body, "v1.37.0")

	upgraded.Store(true)
	u.network.Cut()
	until(t, "the relay serves what the upstream has", func() bool {
		code, body := r.tries("alice", pods)
		seen := code == http.StatusOK && strings.Contains(body, `"resourceVersion":"6"`)
		require.True(t, !seen || strings.Contains(body, "novel"), body)
		return seen
	})
	_, body = r.ask(t, "alice", "/version")
	require.Contains(t, body, "v1.99.0")
	_, body = r.ask(t, "alice", "/api/v1/pods?watch=1&timeoutSeconds=5&resourceVersion=5")
	require.Contains(t, body, `"code":410`)
	require.Equal(t, 1, strings.Count(r.log.String(), "The upstream has changed"))
}

// tries asks a relay that may not listen, which has the code 0.
func (r *relay) tries(user, path string) (int, string) {
	client, err := rest.HTTPClientFor(r.config(user))
	if err != nil {
		return 0, ""
	}
	defer utilnet.CloseIdleConnectionsFor(client.Transport)
	request, err := http.NewRequest(http.MethodGet, r.host+path, nil)
	if err != nil {
		return 0, err.Error()
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	body, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(body)
}

// The kind of lists and the selectable fields are those of the definition, and another
// definition has its own.
func TestDefinitionIsReplaced(t *testing.T) {
	noLeaks(t)
	u := startUpstream(t, apiserver.Ours)
	create(t, u.direct, device("a/x"))
	var kind atomic.Value
	kind.Store("DeviceRow")
	u.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/customresourcedefinitions/devices.fleet.example.com") {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","metadata":{"name":"devices.fleet.example.com"},"spec":{"names":{"listKind":%q}}}`, kind.Load())
		return true
	})
	r := u.startRelay(t)
	kindOf := func() string {
		var list struct{ Kind string }
		_, body := r.tries("alice", path+"?resourceVersion=0")
		_ = json.Unmarshal([]byte(body), &list)
		return list.Kind
	}
	require.Equal(t, "DeviceRow", kindOf())
	kind.Store("DeviceTable")
	u.network.Cut()
	until(t, "lists have the kind of the other definition", func() bool { return kindOf() == "DeviceTable" })
	code, body := r.ask(t, "alice", devicesA+"/x")
	require.Equal(t, http.StatusOK, code, body)
}

// What the upstream refuses to the relay itself is no answer to a client.
func TestOwnCredentialsAreRefused(t *testing.T) {
	noLeaks(t)
	u := startUpstream(t, apiserver.Ours)
	create(t, u.direct, device("a/x"))
	r := u.startRelay(t)
	for _, code := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		u.intercept(func(w http.ResponseWriter, request *http.Request) bool {
			if request.Header.Get("Authorization") != "Bearer relay" || !strings.HasPrefix(request.URL.Path, path) && !strings.HasPrefix(request.URL.Path, devicesA) {
				return false
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"the relay lacks a right","code":%d}`, code)
			return true
		})
		for _, f := range []form{{devicesA + "/x", nil}, {path, []string{asTable}}, {path + "?fieldSelector=spec.owner%3Do", nil}} {
			got, body := r.ask(t, "alice", f.path, f.headers...)
			require.Equal(t, http.StatusServiceUnavailable, got, body)
			require.Contains(t, body, "the upstream refuses the credentials of this relay")
		}
		got, body := r.ask(t, "alice", path+"?resourceVersion=0")
		require.Equal(t, http.StatusOK, got, body)
	}
	got, body := r.ask(t, "alice", "/readyz")
	require.Equal(t, http.StatusInternalServerError, got, body)
	require.Contains(t, body, "[-]upstream")
	require.Contains(t, r.log.String(), "the relay lacks a right")
	_, metrics := r.ask(t, "alice", "/metrics")
	require.Positive(t, value(metrics, "watchcache_relay_refused_credentials_total"))
	u.intercept(nil)
	got, body = r.ask(t, "alice", devicesA+"/x")
	require.Equal(t, http.StatusOK, got, body)
}

// A relay that lacks a right does not start, and names it.
func TestLacksARight(t *testing.T) {
	u := startUpstream(t, apiserver.Ours)
	r := u.startRelay(t)
	u.intercept(func(w http.ResponseWriter, request *http.Request) bool {
		if !strings.HasSuffix(request.URL.Path, "/selfsubjectaccessreviews") {
			return false
		}
		body, _ := io.ReadAll(request.Body) // in protobuf
		allowed := !bytes.Contains(body, []byte("tokenreviews")) && !bytes.Contains(body, []byte("watch"))
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":%t}}`, allowed)
		return true
	})
	out, err := exec.Command(r.path, r.args...).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "lacks the right to create tokenreviews.authentication.k8s.io")
	require.Contains(t, string(out), "lacks the right to watch devices.fleet.example.com")
	require.NotContains(t, string(out), "to list")
}
