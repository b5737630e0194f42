// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// REGRESSIONS 71: with the feature gate WatchList off etcd's storage does not
// stream its state, and the server serves all the same.
func TestWatchListOff(t *testing.T) {
	s := startServer(t, filepath.Join(t.TempDir(), "run"), "--secure-port=0", "--feature-gates=WatchList=false")
	client := s.client(t)
	do := func(method, path, body string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), method, s.config.Host+path, strings.NewReader(body))
		require.NoError(t, err)
		request.Header.Set("Content-Type", "application/json")
		response, err := client.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		content, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(content)
	}
	const (
		devices = "/apis/fleet.example.com/v1/namespaces/lab/devices"
		device  = `{"apiVersion":"fleet.example.com/v1","kind":"Device","metadata":{"name":"a"},"spec":{"zone":"z","owner":"o","model":"m"}}`
	)
	code, body := do(http.MethodPost, devices, device)
	require.Equal(t, http.StatusCreated, code, body)
	code, body = do(http.MethodGet, devices, "")
	require.Equal(t, http.StatusOK, code, body)
	require.Contains(t, body, `"name":"a"`)
	code, body = do(http.MethodGet, "/readyz?verbose", "")
	require.Equal(t, http.StatusOK, code, body)
	require.Contains(t, body, "[+]watchcache ok")
}
