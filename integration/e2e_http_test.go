// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// devicesV1 is the path of all devices.
const devicesV1 = "/apis/fleet.example.com/v1/devices"

// answer is an HTTP response that was read.
type answer struct {
	status int
	body   string
}

func get(t *testing.T, client *http.Client, url string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(within(t), http.MethodGet, url, nil)
	require.NoError(t, err)
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return answer{resp.StatusCode, string(body)}
}

// stream is a watch as it comes over HTTP.
type stream struct {
	decoder *json.Decoder
}

// openWatch opens a watch, again if the server answers 429, as client-go does.
func openWatch(t *testing.T, s *apiserver, path string) *stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	require.NoError(t, err)
	client := s.client(t)
	var resp *http.Response
	eventually(t, "the server has too many requests", func(context.Context) (bool, error) {
		var err error
		resp, err = client.Do(req)
		require.NoError(t, err)
		if resp.StatusCode == http.StatusTooManyRequests {
			return false, resp.Body.Close()
		}
		return true, nil
	})
	t.Cleanup(func() { _ = resp.Body.Close() })
	require.Equal(t, http.StatusOK, resp.StatusCode)
	return &stream{json.NewDecoder(resp.Body)}
}

func (s *stream) next(t *testing.T) metav1.WatchEvent {
	t.Helper()
	var event metav1.WatchEvent
	require.NoError(t, s.decoder.Decode(&event))
	return event
}

// end reads the stream to its end and gives the reason.
func (s *stream) end(t *testing.T) error {
	t.Helper()
	for {
		var event metav1.WatchEvent
		if err := s.decoder.Decode(&event); err != nil {
			return err
		}
	}
}

func metaOf(t *testing.T, event metav1.WatchEvent) metav1.ObjectMeta {
	t.Helper()
	var obj metav1.PartialObjectMetadata
	require.NoError(t, json.Unmarshal(event.Object.Raw, &obj))
	return obj.ObjectMeta
}

// testMalformedVersions: a resourceVersion that is none is the client's mistake in each verb.
func testMalformedVersions(t *testing.T, s *apiserver) {
	for _, version := range []string{"-1", "1 ", " 1", "x", "1.5", "0x1", "18446744073709551616"} {
		rv := "resourceVersion=" + url.QueryEscape(version)
		for _, path := range []string{
			"?" + rv, "?limit=1&" + rv, "?resourceVersionMatch=Exact&" + rv, "/x?" + rv, "?watch=1&" + rv, "?watch=1&fieldSelector=metadata.name%3Dx&" + rv,
			"?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&" + rv,
		} {
			path = strings.Replace(devicesV1, "/devices", "/namespaces/a/devices", 1) + path
			got := get(t, s.client(t), s.url+path)
			require.Equal(t, http.StatusBadRequest, got.status, "%s: %s", path, got.body)
			require.Contains(t, got.body, version, path)
		}
	}
}
