// SPDX-License-Identifier: Apache-2.0

//go:build linux

package computed

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// cpus returns the names of the CPUs' loads.
func cpus(t *testing.T) (names []string) {
	t.Helper()
	stat, err := os.ReadFile("/proc/stat")
	require.NoError(t, err)
	for _, match := range regexp.MustCompile(`(?m)^cpu(\d+) `).FindAllStringSubmatch(string(stat), -1) {
		names = append(names, "cpu-"+match[1])
	}
	require.NotEmpty(t, names)
	return names
}

func names(t *testing.T, s *server, opts metav1.ListOptions) (out []string) {
	t.Helper()
	list, err := s.client().List(t.Context(), opts)
	require.NoError(t, err)
	for _, load := range list.Items {
		require.NotEmpty(t, load.GetResourceVersion())
		require.Equal(t, load.GetLabels()["kind"], strings.Split(load.GetName(), "-")[0])
		out = append(out, load.GetName())
	}
	return out
}

// TestClients: lists, selectors and informers see processes come and go. A server with
// open watches ends at Ctrl-C, and has logged neither a warning nor an error.
func TestClients(t *testing.T) {
	s := start(t, t.TempDir(), "0")
	require.ElementsMatch(t, cpus(t), names(t, s, metav1.ListOptions{LabelSelector: "kind=cpu"}))
	require.Equal(t, []string{"cpu-0"}, names(t, s, metav1.ListOptions{FieldSelector: "metadata.name=cpu-0"}))
	for _, of := range []string{"percent=0", "percent!=0"} {
		loads, err := s.client().List(t.Context(), metav1.ListOptions{FieldSelector: of})
		require.NoError(t, err, of)
		for _, load := range loads.Items {
			require.Equal(t, of == "percent=0", load.Object["percent"] == int64(0), of)
			require.NotEmpty(t, load.GetUID())
			require.Less(t, time.Since(load.GetCreationTimestamp().Time), patience)
		}
	}
	_, err := s.client().List(t.Context(), metav1.ListOptions{FieldSelector: "command=cat"})
	require.True(t, apierrors.IsBadRequest(err), err)
	first, err := s.client().List(t.Context(), metav1.ListOptions{Limit: 1})
	require.NoError(t, err)
	rest, err := s.client().List(t.Context(), metav1.ListOptions{Continue: first.GetContinue()})
	require.NoError(t, err)
	require.Equal(t, first.GetResourceVersion(), rest.GetResourceVersion())
	require.Len(t, rest.Items, int(*first.GetRemainingItemCount()))

	all, some := inform(t, s.config(), ""), inform(t, s.config(), "kind=cpu")
	all.mu.Lock()
	require.Equal(t, "true", all.mu.watches[0].Get("sendInitialEvents"), "the informer has not used WatchList")
	all.mu.Unlock()
	p := startProcess(t)
	require.Eventually(t, func() bool { return all.state()[p.name] != "" }, patience, pollInterval)
	require.Contains(t, names(t, s, metav1.ListOptions{LabelSelector: "kind=group"}), p.name)
	load, err := s.client().Get(t.Context(), p.name, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "cat", load.Object["command"])
	require.Subset(t, all.agrees(s), some.state())
	p.end()
	require.Eventually(t, func() bool { return all.state()[p.name] == "" }, patience, pollInterval)
	all.mu.Lock()
	require.Equal(t, 1, all.mu.deleted[p.name])
	require.Len(t, all.mu.watches, 1)
	all.mu.Unlock()
	require.Len(t, some.state(), len(cpus(t)))

	require.Equal(t, 0, s.stop(syscall.SIGINT), s.log.String())
	require.NotRegexp(t, `(?m)^[EWF]\d{4} `, s.log.String())
}

// TestEitherForm: a client that accepts protobuf as well, as those of Kubernetes do, gets
// JSON, since the type has no protobuf.
func TestEitherForm(t *testing.T) {
	s := start(t, t.TempDir(), "0")
	client, err := rest.HTTPClientFor(s.config())
	require.NoError(t, err)
	const all = "/apis/loads.example.com/v1/loads"
	for _, path := range []string{all, all + "/cpu-0", all + "?watch=1&resourceVersion=0"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.url.Host+path, nil)
		require.NoError(t, err)
		request.Header.Set("Accept", "application/vnd.kubernetes.protobuf,application/json")
		response, err := client.Do(request)
		require.NoError(t, err)
		var first map[string]any
		require.NoError(t, json.NewDecoder(response.Body).Decode(&first), path)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusOK, response.StatusCode, "%s: %v", path, first)
		require.Equal(t, "application/json", response.Header.Get("Content-Type"), path)
	}
}

// TestReadOnly: what writes is answered with 405, and discovery offers nothing of it.
func TestReadOnly(t *testing.T) {
	s := start(t, t.TempDir(), "0")
	client, err := rest.HTTPClientFor(s.config())
	require.NoError(t, err)
	const all, one = "/apis/loads.example.com/v1/loads", "/apis/loads.example.com/v1/loads/cpu-0"
	object := `{"apiVersion":"loads.example.com/v1","kind":"Load","metadata":{"name":"cpu-0"},"percent":7}`
	do := func(method, path, contentType string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), method, s.url.JoinPath(path).String(), strings.NewReader(object))
		require.NoError(t, err)
		request.Header.Set("Content-Type", contentType)
		response, err := client.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(body)
	}
	for _, write := range [][3]string{
		{http.MethodPost, all, "application/json"},
		{http.MethodPost, one, "application/json"},
		{http.MethodPut, one, "application/json"},
		{http.MethodPatch, one, "application/merge-patch+json"},
		{http.MethodPatch, one, "application/apply-patch+yaml"},
		{http.MethodDelete, one, "application/json"},
		{http.MethodDelete, all, "application/json"},
	} {
		status, answer := do(write[0], write[1], write[2])
		require.Equal(t, http.StatusMethodNotAllowed, status, "%v: %s", write, answer)
	}
	status, answer := do(http.MethodGet, "/apis/loads.example.com/v1", "")
	require.Equal(t, http.StatusOK, status)
	var resources metav1.APIResourceList
	require.NoError(t, json.Unmarshal([]byte(answer), &resources))
	require.Len(t, resources.APIResources, 1)
	require.Equal(t, metav1.Verbs{"get", "list", "watch"}, resources.APIResources[0].Verbs)
}

// TestRestart: an informer outlives the process, whether that was killed or stopped. The
// new one is in another state and does not know the informer's version: after a 410 the
// informer has all that there is and nothing else.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir, "0")
	in := inform(t, s.config(), "")
	for n, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT} {
		gone := startProcess(t)
		require.Eventually(t, func() bool { return in.state()[gone.name] != "" }, patience, pollInterval)
		before, version := s.state()
		page, err := s.client().List(t.Context(), metav1.ListOptions{Limit: 1})
		require.NoError(t, err)
		s.stop(signal)
		gone.end()
		came := startProcess(t)

		s = start(t, dir, s.url.Port())
		require.Eventually(t, func() bool { return in.state()[came.name] != "" }, patience, pollInterval)
		after := in.agrees(s)
		require.NotContains(t, after, gone.name)
		require.Contains(t, after, came.name)
		for name, rv := range after {
			require.Greater(t, number(t, rv), number(t, version), name)
		}
		require.Contains(t, before, "cpu-0")
		require.Contains(t, after, "cpu-0")
		in.mu.Lock()
		require.Equal(t, 1, in.mu.deleted[gone.name])
		require.Equal(t, n+1, in.mu.expired)
		require.Equal(t, "true", in.mu.watches[len(in.mu.watches)-1].Get("sendInitialEvents"))
		in.mu.Unlock()

		_, err = s.client().List(t.Context(), metav1.ListOptions{Continue: page.GetContinue()})
		require.True(t, apierrors.IsResourceExpired(err), err)
		w, err := s.client().Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
		require.NoError(t, err)
		refused := <-w.ResultChan()
		w.Stop()
		require.Equal(t, watch.Error, refused.Type)
		require.Equal(t, metav1.StatusReasonExpired, refused.Object.(*metav1.Status).Reason)
	}
}

func number(t *testing.T, version string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(version, 10, 64)
	require.NoError(t, err)
	return n
}
