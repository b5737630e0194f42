// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
)

// withState asks for a watch that begins with the whole state and its end.
const withState = podsPath + "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"

// streamed is a watch that is read event by event.
type streamed struct {
	t        testing.TB
	response *http.Response
	end      context.CancelFunc
	body     *bufio.Reader
	protobuf bool
}

// openStream opens a watch. Its body is read as one member of gzip if it is compressed,
// unless members says that there may be many.
func openStream(t testing.TB, served *httptest.Server, path string, header http.Header, http2, members bool) *streamed {
	t.Helper()
	transport := rawTransport(served, http2)
	t.Cleanup(transport.CloseIdleConnections)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, served.URL+path, nil)
	require.NoError(t, err)
	r.Header = header.Clone()
	response, err := transport.RoundTrip(r)
	require.NoError(t, err)
	require.Equal(t, http2, response.Proto == "HTTP/2.0")
	s := &streamed{t: t, response: response, end: cancel, protobuf: strings.Contains(response.Header.Get("Content-Type"), "protobuf")}
	t.Cleanup(s.leave)
	body := io.Reader(response.Body)
	if response.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(bufio.NewReader(body))
		require.NoError(t, err)
		unzipped.Multistream(members)
		body = unzipped
	}
	s.body = bufio.NewReader(body)
	return s
}

func (s *streamed) leave() {
	s.end()
	_ = s.response.Body.Close()
}

// next returns the next event, "" at the end of the watch.
func (s *streamed) next() (string, error) {
	if !s.protobuf {
		line, err := s.body.ReadString('\n')
		if err == io.EOF && line == "" {
			err = nil
		}
		return line, err
	}
	head := make([]byte, 4)
	if _, err := io.ReadFull(s.body, head); err != nil {
		if err == io.EOF {
			err = nil
		}
		return "", err
	}
	event := make([]byte, binary.BigEndian.Uint32(head))
	_, err := io.ReadFull(s.body, event)
	return string(event), err
}

// state returns the events up to the bookmark that ends the state.
func (s *streamed) state() []string {
	s.t.Helper()
	var events []string
	for {
		event, err := s.next()
		require.NoError(s.t, err)
		require.NotEmpty(s.t, event, "the watch has ended")
		events = append(events, event)
		if strings.Contains(event, "initial-events-end") {
			return events
		}
	}
}

// events returns the next n events that are no bookmarks.
func (s *streamed) events(n int) []string {
	s.t.Helper()
	var events []string
	for len(events) < n {
		event, err := s.next()
		require.NoError(s.t, err)
		require.NotEmpty(s.t, event, "the watch has ended")
		if !strings.Contains(event, "BOOKMARK") {
			events = append(events, event)
		}
	}
	return events
}

// Watches that a server compresses are compressed with the line as without it, over
// both versions of HTTP: the same header, and the same events.
func TestCompressedWatches(t *testing.T) {
	s := serveTwins(t, pods(t), auditinternal.LevelMetadata)
	manyPods(t, s)
	change := 1000
	for _, accept := range []string{asJSON, asProtobuf, "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"} {
		for round := range 3 {
			for _, http2 := range []bool{false, true} {
				for _, encodings := range []string{"gzip", "identity"} {
					header := http.Header{"Accept": {accept}, "Accept-Encoding": {encodings}}
					want := openStream(t, s.without, withState, header, http2, true)
					got := openStream(t, s.with, withState, header, http2, false)
					for _, response := range []*http.Response{want.response, got.response} {
						response.Header.Del("Date")
						response.Header.Del("Audit-Id")
					}
					require.Equal(t, http.StatusOK, got.response.StatusCode)
					require.Equal(t, want.response.Header, got.response.Header)
					require.Equal(t, want.response.TransferEncoding, got.response.TransferEncoding)
					require.Equal(t, encodings == "gzip" && serverCompressesWatches, got.response.Header.Get("Content-Encoding") == "gzip")
					require.Equal(t, want.state(), got.state(), "round %d as %s", round, accept)
					for range 3 {
						change++
						s.put(t, testPod("ns1", "x27", change))
					}
					require.Equal(t, want.events(3), got.events(3))
					want.leave()
					got.leave()
				}
			}
		}
	}
}

// The compressed form of initial events is kept, and what the next watches are sent.
func TestCompressedInitialEventsAreKept(t *testing.T) {
	s := serveTwins(t, pods(t), auditinternal.LevelMetadata)
	manyPods(t, s)
	begin := func(encodings string) (kept int64) {
		openStream(t, s.with, withState, http.Header{"Accept": {asJSON}, "Accept-Encoding": {encodings}}, true, false).state()
		return s.cache.Status().EncodingBytes
	}
	plain := begin("identity")
	require.Greater(t, plain, int64(60*4000), "the events")
	compressed := begin("gzip")
	if !serverCompressesWatches {
		require.Equal(t, plain, compressed)
		return
	}
	require.Greater(t, compressed, plain, "and their compressed form: do its initial events still share?")
	require.Equal(t, compressed, begin("gzip"))
}

// Watches that the server does not compress of itself are not compressed.
func TestWatchesThatAreNotCompressed(t *testing.T) {
	s := serveTwins(t, pods(t), auditinternal.LevelMetadata)
	manyPods(t, s)
	gzipped := http.Header{"Accept": {asJSON}, "Accept-Encoding": {"gzip"}}
	same := func(t *testing.T, path string, header http.Header) {
		t.Helper()
		want := sendRaw(t, s.without, http.MethodGet, path, header.Clone(), true)
		got := sendRaw(t, s.with, http.MethodGet, path, header.Clone(), true)
		require.Equal(t, want.status, got.status)
		require.Equal(t, want.header, got.header)
		require.NotEqual(t, "gzip", got.header.Get("Content-Encoding"))
		require.Equal(t, string(want.body), string(got.body))
	}
	latest := fmt.Sprint(s.cache.Status().ResourceVersion)
	same(t, podsPath+"?watch=1&timeoutSeconds=1&resourceVersion="+latest, gzipped)
	same(t, podsPath+"?watch=1&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0", gzipped) // without bookmarks
	for _, refused := range []string{
		withState + "&resourceVersion=none", withState + "&labelSelector=%3D%3D", withState + "&limit=x",
		podsPath + "?watch=1&sendInitialEvents=true&allowWatchBookmarks=true", podsPath + "?watch=1&resourceVersion=999999999&resourceVersionMatch=Exact",
	} {
		same(t, refused, gzipped)
	}
	disableCompressedWatches(t)
	same(t, withState+"&timeoutSeconds=1&fieldSelector=metadata.name%3Dx27", gzipped)
}

// A compressed watch ends with the end of its member: after its time, and when the
// state matches nothing.
func TestCompressedWatchEnds(t *testing.T) {
	s := serveTwins(t, pods(t), auditinternal.LevelMetadata)
	manyPods(t, s)
	for _, query := range []string{"", "&labelSelector=app%3Dnone", "&fieldSelector=metadata.name%3Dx27"} {
		for _, http2 := range []bool{false, true} {
			header := http.Header{"Accept": {asJSON}, "Accept-Encoding": {"gzip"}}
			got := sendRaw(t, s.with, http.MethodGet, withState+"&timeoutSeconds=1"+query, header, http2)
			body := got.body
			require.Equal(t, serverCompressesWatches, got.header.Get("Content-Encoding") == "gzip")
			if serverCompressesWatches {
				body = gunzip(t, body)
			}
			lines := strings.SplitAfter(string(body), "\n")
			want := openStream(t, s.without, withState+query, http.Header{"Accept": {asJSON}}, http2, false).state()
			require.Equal(t, want, lines[:len(want)])
		}
	}
}

// A watch over a connection that changes its protocol, a WebSocket, is left to the
// server: what comes to the client then is no response.
func TestWatchesThatUpgradeAreLeftAlone(t *testing.T) {
	installed := &installation{}
	installed.groups.Store(examplev1.SchemeGroupVersion, &servedGroup{storages: map[string]rest.Storage{"pods": &genericregistry.Store{}}})
	for _, upgrade := range []string{"", "websocket", "SPDY/3.1"} {
		for _, encoding := range []string{"gzip", "identity"} {
			info := &request.RequestInfo{
				IsResourceRequest: true, Verb: "watch", APIGroup: example.GroupName, APIVersion: "v1", Resource: "pods",
			}
			r := httptest.NewRequestWithContext(request.WithRequestInfo(t.Context(), info), http.MethodGet, withState, nil)
			r.Header.Set("Accept-Encoding", encoding)
			if upgrade != "" {
				r.Header.Set("Upgrade", upgrade)
			}
			verb, compressed := installed.classify(r)
			require.Equal(t, upgrade == "", verb == "watch")
			require.Equal(t, upgrade == "" && encoding == "gzip" && serverCompressesWatches, compressed)
		}
	}
}
