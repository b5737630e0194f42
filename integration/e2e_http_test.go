// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

// Paths of the API.
const (
	devicesV1 = "/apis/fleet.example.com/v1/devices"
	pagedV1   = "/apis/fleet.example.com/v1/namespaces/paged/devices"
	streamsV1 = "/apis/fleet.example.com/v1/namespaces/streams/devices"
)

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

// list gets a list of devices.
func list(t *testing.T, client *http.Client, url string) fleetv1.DeviceList {
	t.Helper()
	a := get(t, client, url)
	require.Equal(t, http.StatusOK, a.status, a.body)
	var out fleetv1.DeviceList
	require.NoError(t, json.Unmarshal([]byte(a.body), &out))
	return out
}

func testHTTP(t *testing.T, s *apiserver) {
	create(t, clientsetFor(t, s), "paged", "page", 23)
	t.Run("versions", func(t *testing.T) { testHTTPVersions(t, s) })
	t.Run("pages", func(t *testing.T) { testHTTPPages(t, s) })
	t.Run("watch list", func(t *testing.T) { testHTTPWatchList(t, s) })
	t.Run("bookmarks", func(t *testing.T) { testHTTPBookmarks(t, s) })
}

// testHTTPVersions reads any version, an exact one, and one that there is not.
func testHTTPVersions(t *testing.T, s *apiserver) {
	client := s.client(t)
	then := list(t, client, s.url+pagedV1)
	require.Len(t, then.Items, 23)
	changed := then.Items[7].DeepCopy()
	changed.Spec.Owner = "changed"
	_, err := clientsetFor(t, s).FleetV1().Devices("paged").Update(within(t), changed, metav1.UpdateOptions{})
	require.NoError(t, err)

	exact := list(t, client, s.url+pagedV1+"?resourceVersionMatch=Exact&resourceVersion="+then.ResourceVersion)
	require.Equal(t, then.ResourceVersion, exact.ResourceVersion)
	require.Equal(t, then.Items, exact.Items, "an exact list shows another version")
	now := list(t, client, s.url+pagedV1)
	require.Equal(t, "changed", now.Items[7].Spec.Owner)
	after := list(t, client, s.url+pagedV1+"?resourceVersionMatch=NotOlderThan&resourceVersion="+now.ResourceVersion)
	require.Equal(t, "changed", after.Items[7].Spec.Owner)
	require.Len(t, list(t, client, s.url+pagedV1+"?resourceVersion=0").Items, 23)

	rv, err := strconv.ParseUint(now.ResourceVersion, 10, 64)
	require.NoError(t, err)
	future := get(t, client, s.url+pagedV1+fmt.Sprintf("?resourceVersion=%d", rv+1_000_000))
	require.Equal(t, http.StatusGatewayTimeout, future.status, future.body)
	require.Contains(t, future.body, "Too large resource version")
}

// testHTTPPages reads page by page while others write.
func testHTTPPages(t *testing.T, s *apiserver) {
	client, writer := s.client(t), clientsetFor(t, s)
	whole := list(t, client, s.url+pagedV1)
	var pages []fleetv1.Device
	query, reads := "?limit=5", 0
	for {
		page := list(t, client, s.url+pagedV1+query)
		reads++
		require.Equal(t, whole.ResourceVersion, page.ResourceVersion, "a page of another version")
		pages = append(pages, page.Items...)
		if page.Continue == "" {
			break
		}
		require.NotNil(t, page.RemainingItemCount)
		require.EqualValues(t, len(whole.Items)-len(pages), *page.RemainingItemCount)
		query = "?limit=5&continue=" + url.QueryEscape(page.Continue)
		_, err := writer.FleetV1().Devices("paged").Create(within(t), device("paged", fmt.Sprintf("zz-%d", reads), "hh-1"), metav1.CreateOptions{})
		require.NoError(t, err)
	}
	require.Equal(t, whole.Items, pages)
	require.Equal(t, 5, reads)
	require.Len(t, list(t, client, s.url+pagedV1).Items, len(whole.Items)+reads-1)
}

// testHTTPWatchList is how new clients list: a watch that begins with the
// state and says when it was all.
func testHTTPWatchList(t *testing.T, s *apiserver) {
	writer := clientsetFor(t, s)
	first := create(t, writer, "streams", "first", 7)
	w := openWatch(t, s, streamsV1+"?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
	for i := range first {
		event := w.next(t)
		require.Equal(t, string(watch.Added), event.Type)
		require.Equal(t, first[i].Name, metaOf(t, event).Name)
	}
	end := w.next(t)
	require.Equal(t, string(watch.Bookmark), end.Type)
	require.Equal(t, "true", metaOf(t, end).Annotations[metav1.InitialEventsAnnotationKey])
	require.Equal(t, first[len(first)-1].ResourceVersion, metaOf(t, end).ResourceVersion)

	second := create(t, writer, "streams", "second", 2)
	for _, want := range second {
		event := w.nextChange(t)
		require.Equal(t, string(watch.Added), event.Type)
		require.Equal(t, want.Name, metaOf(t, event).Name)
		require.Equal(t, want.ResourceVersion, metaOf(t, event).ResourceVersion)
	}

	// From a version: what is after it, and nothing before.
	w = openWatch(t, s, streamsV1+"?watch=true&resourceVersion="+first[4].ResourceVersion)
	for _, want := range append(first[5:], second...) {
		require.Equal(t, want.Name, metaOf(t, w.next(t)).Name)
	}
}

// testHTTPBookmarks waits for the bookmark that comes before a watch's end,
// and for the end.
func testHTTPBookmarks(t *testing.T, s *apiserver) {
	client := s.client(t)
	before := list(t, client, s.url+streamsV1)
	create(t, clientsetFor(t, s), "streams-not", "one", 1)
	var event metav1.WatchEvent
	// The bookmark comes two seconds before the end, for which a server that has no
	// processor for so long is too late.
	eventually(t, "no bookmark comes before the end of a watch", func(context.Context) (bool, error) {
		w := openWatch(t, s, streamsV1+"?watch=true&allowWatchBookmarks=true&timeoutSeconds=4&resourceVersion="+before.ResourceVersion)
		if err := w.decoder.Decode(&event); err != nil {
			return false, err
		}
		require.ErrorIs(t, w.end(t), io.EOF)
		return true, nil
	})
	require.Equal(t, string(watch.Bookmark), event.Type)
	require.NotEqual(t, before.ResourceVersion, metaOf(t, event).ResourceVersion, "it tells of what the watch does not show")
	require.Empty(t, metaOf(t, event).Annotations)

	resumed := openWatch(t, s, streamsV1+"?watch=true&resourceVersion="+metaOf(t, event).ResourceVersion)
	last := create(t, clientsetFor(t, s), "streams", "third", 1)[0]
	require.Equal(t, last.Name, metaOf(t, resumed.next(t)).Name, "a bookmark's version is no place to resume from")
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

// nextChange gives the next event that is no bookmark: one may come at any time.
func (s *stream) nextChange(t *testing.T) metav1.WatchEvent {
	t.Helper()
	for {
		if event := s.next(t); event.Type != string(watch.Bookmark) {
			return event
		}
	}
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
