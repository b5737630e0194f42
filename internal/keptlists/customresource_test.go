// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-watchcache/watchcache/watchcache"
)

var pandas = schema.GroupVersionResource{Group: "zoo.example.com", Version: "v1", Resource: "pandas"}

// customServer is a server of custom resources with a cache: it fills a list, and
// writes it.
type customServer struct {
	listings Encoder
	store    *Store
	elements []*watchcache.Element
	// form is how the list is asked for.
	form CustomList
	// write writes the list.
	write func(w http.ResponseWriter, r *http.Request, list *unstructured.UnstructuredList)
	// edit changes what is written.
	edit func([]byte) []byte
	// asked counts requests, and written the items that write was given.
	asked, written int
}

func newCustomServer(n int) *customServer {
	s := &customServer{edit: func(b []byte) []byte { return b }}
	s.store = storeOf(&s.listings, 1<<22)
	s.write = s.writeCustom
	s.listings.EnableCustomResources()
	for i := range n {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"text": strings.Repeat("<é>", 500)}}}
		o.SetGroupVersionKind(pandas.GroupVersion().WithKind("Panda"))
		o.SetName(fmt.Sprint("po", i))
		s.elements = append(s.elements, &watchcache.Element{Key: fmt.Sprintf("/pandas/po%04d", i), RV: uint64(i + 1), Object: o})
	}
	return s
}

// writeCustom writes the objects whole.
func (s *customServer) writeCustom(w http.ResponseWriter, _ *http.Request, list *unstructured.UnstructuredList) {
	var b bytes.Buffer
	_ = customJSON.Encode(list, &b)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(s.edit(b.Bytes()))
}

// list reads from the cache as a storage does.
func (s *customServer) list(ctx context.Context) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{Items: []unstructured.Unstructured{}}
	list.SetGroupVersionKind(pandas.GroupVersion().WithKind("PandaList"))
	fill := s.listings.Custom(ctx, pandas.GroupResource(), list, s.store)
	list.SetResourceVersion("7")
	if fill == nil || !fill.Complete(s.elements) || !fill.Omit {
		for _, e := range s.elements {
			list.Items = append(list.Items, *e.Object.(*unstructured.Unstructured))
		}
	}
	return list
}

func (s *customServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.asked++
	list := s.list(r.Context())
	s.written = len(list.Items)
	s.write(w, r, list)
}

func (s *customServer) handler(compressed bool) http.Handler {
	return s.listings.CustomResources(s, func(*http.Request) (CustomList, bool) {
		asked := s.form
		asked.Resource, asked.Gzip = pandas, compressed
		return asked, true
	})
}

func (s *customServer) get(t *testing.T, compressed bool) *httptest.ResponseRecorder {
	t.Helper()
	s.asked = 0
	recorder := httptest.NewRecorder()
	r := request(t, compressed)
	s.handler(compressed).ServeHTTP(recorder, r)
	require.Equal(t, request(t, compressed).Header, r.Header, "nobody else sees what the server is asked")
	require.Equal(t, "/?a=b", r.URL.String())
	return recorder
}

func request(t *testing.T, compressed bool) *http.Request {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/?a=b", nil)
	if compressed {
		r.Header.Set("Accept-Encoding", "gzip")
	}
	return r
}

// expect asks, and compares what a client reads.
func (s *customServer) expect(t *testing.T, compressed bool) {
	t.Helper()
	got := s.get(t, compressed)
	want := httptest.NewRecorder()
	s.write(want, request(t, false), s.list(t.Context()))
	body := got.Body.Bytes()
	if got.Header().Get("Content-Encoding") == "gzip" {
		require.Equal(t, "Accept-Encoding", got.Header().Get("Vary"))
		body = unzip(t, body)
		got.Header().Del("Content-Encoding")
		got.Header().Del("Vary")
	}
	require.Equal(t, want.Code, got.Code)
	require.Equal(t, want.Header(), got.Header())
	require.True(t, bytes.Equal(want.Body.Bytes(), body), "%.200q, and not %.200q", body, want.Body)
}

// A list for something else than the request is filled as ever, and so is a second one.
func TestCustomResourcesAreForTheRequestsList(t *testing.T) {
	s := newCustomServer(200)
	for range 3 {
		s.expect(t, false)
	}
	answer := &customRequest{CustomList: CustomList{Resource: pandas}, listings: &s.listings}
	ctx := context.WithValue(t.Context(), customKey{}, answer)
	other := &unstructured.UnstructuredList{}
	other.SetGroupVersionKind(pandas.GroupVersion().WithKind("PandaList"))
	require.Nil(t, s.listings.Custom(ctx, schema.GroupResource{Group: "zoo.example.com", Resource: "koalas"}, other, s.store))
	older := &unstructured.UnstructuredList{}
	older.SetAPIVersion("zoo.example.com/v2")
	require.Nil(t, s.listings.Custom(ctx, pandas.GroupResource(), older, s.store))
	require.Nil(t, s.listings.Custom(ctx, pandas.GroupResource(), &unstructured.Unstructured{}, s.store))
	require.Empty(t, s.list(ctx).Items)
	require.Len(t, s.list(ctx).Items, 200)
}

// A client that goes away, before a list is sent or meanwhile, says nothing about the server.
func TestListOfAClientThatHasGone(t *testing.T) {
	for _, before := range []bool{true, false} {
		s := newCustomServer(200)
		for range 4 {
			s.expect(t, false)
		}
		write := s.write
		ctx, cancel := context.WithCancel(t.Context())
		s.write = func(w http.ResponseWriter, _ *http.Request, list *unstructured.UnstructuredList) {
			var b bytes.Buffer
			_ = customJSON.Encode(list, &b)
			w.WriteHeader(http.StatusOK)
			if before {
				cancel()
			} else if _, err := w.Write(b.Bytes()); err != nil {
				_, _ = w.Write([]byte(`{"kind":"Status"}`)) // as k8s.io/apiserver does
			}
		}
		s.handler(false).ServeHTTP(brokenConnection{httptest.NewRecorder()}, request(t, false).WithContext(ctx))
		cancel()
		require.False(t, s.store.customFormat(s.form).refused.Load(), "the format is refused for good")
		s.write = write
		s.expect(t, false)
		require.Zero(t, s.written)
	}
}

type brokenConnection struct{ http.ResponseWriter }

func (brokenConnection) Write([]byte) (int, error) { return 0, errors.New("the connection is broken") }
