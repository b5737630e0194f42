// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/utils/ptr"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// choices deals out what a fuzzer has written; after its end all choices are 0.
type choices []byte

func (c *choices) of(n int) int {
	if len(*c) == 0 {
		return 0
	}
	b := (*c)[0]
	*c = (*c)[1:]
	return int(b) % n
}

// text is up to some bytes of what the fuzzer has written, as it is.
func (c *choices) text() string {
	n := min(len(*c), c.of(40))
	b := (*c)[:min(n, len(*c))]
	*c = (*c)[len(b):]
	return string(b)
}

// fuzzedItem is an object with content that the fuzzer chooses.
func fuzzedItem(i, rv int, text string) *watchcache.Element {
	e := element(i, rv)
	e.Object.(*metav1.PartialObjectMetadata).Annotations = map[string]string{text: text}
	return e
}

// protobufLists encodes lists as servers do.
type protobufLists struct {
	*protobuf.Serializer
}

func (protobufLists) Identifier() apiruntime.Identifier { return "protobuf" }

// FuzzLists lists objects of any content while they change, plain and compressed,
// in whole and in part, in JSON and in protobuf, with more and with less room for
// what is kept, and compares with what the encoder makes of each list.
func FuzzLists(f *testing.F) {
	f.Add([]byte("\x02"), false)
	f.Add([]byte("\x01items\"]}\x00\x03,{}\x04\x05[\x06"), false)
	f.Add([]byte("\x03\"},{\"metadata\":{\xff\xfe\x00\xe2\x80\xa8<>&\\"), true)
	for seed := range uint64(6) {
		data := make([]byte, 600)
		random := rand.NewChaCha8([32]byte{byte(seed)})
		_, _ = random.Read(data)
		f.Add(data, seed%2 == 0)
	}
	f.Fuzz(func(t *testing.T, data []byte, inProtobuf bool) {
		in := choices(data)
		budget := []int64{1 << 22, 60_000, 5_000, -1}[in.of(4)]
		r := newResource(budget, []int{0, 1, 15, 60, 200}[in.of(5)])
		var stock apiruntime.Encoder = r
		if inProtobuf {
			scheme := apiruntime.NewScheme()
			metav1.AddMetaToScheme(scheme)
			stock = protobufLists{protobuf.NewSerializer(scheme, scheme)}
			r.encoder = &listEncoder{Encoder: stock, serializer: &serializer{listings: &r.listings}, syntax: protobufSyntax}
		}
		for step := 2; step < 60 && len(in) > 0; step++ {
			n := len(r.elements)
			switch in.of(8) {
			case 0:
				r.elements = slices.Insert(r.elements, n, fuzzedItem(1000+step, step, in.text()))
			case 1:
				if n > 0 {
					at := in.of(n)
					r.elements = slices.Delete(r.elements, at, at+1)
				}
			case 2, 3:
				if n > 0 {
					at := in.of(n)
					changed := fuzzedItem(at, step, in.text())
					changed.Key = r.elements[at].Key
					r.elements[at] = changed
				}
			case 4:
				r.store.Age(time.Duration(step) * time.Minute)
			default:
				from := 0
				if n > 0 && in.of(4) == 0 {
					from = in.of(n)
				}
				list := listOf(r.elements[from:])
				list.Continue, list.ResourceVersion = in.text(), fmt.Sprint(step)
				var want bytes.Buffer
				require.NoError(t, stock.Encode(list, &want))
				for range 1 + in.of(3) {
					requireBothWays(t, r, list, r.elements[from:], want.Bytes())
				}
			}
			if budget > 0 {
				require.LessOrEqual(t, r.store.Bytes(), budget)
			}
		}
		requireNotRefused(t, r.encoder.serializer)
	})
}

// requireNotRefused wants no list to have differed from the encoder's, which would
// have served from then on.
func requireNotRefused(t *testing.T, s *serializer) {
	t.Helper()
	s.formats.Range(func(id, f any) bool {
		require.False(t, f.(*format).refused.Load(), "%v", id)
		return true
	})
}

// requireBothWays wants a list as it is, and compressed.
func requireBothWays(t *testing.T, r *resource, list *metav1.PartialObjectMetadataList, elements []*watchcache.Element, want []byte) {
	t.Helper()
	var got bytes.Buffer
	ctx, end := r.listings.Begin(t.Context())
	defer end()
	r.listings.Note(ctx, list, elements, r.store)
	require.NoError(t, r.encoder.Encode(list, &got))
	require.Equal(t, want, got.Bytes(), "as it is")
	recorder := httptest.NewRecorder()
	list = ptr.To(*list) // which loses its items
	r.listings.Serve(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		r.listings.Note(request.Context(), list, elements, r.store)
		require.NoError(t, r.encoder.Encode(list, &header{ResponseWriter: w, to: w}))
	}), asking("list", true)).ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	body := recorder.Body.Bytes()
	if recorder.Header().Get("Content-Encoding") == "gzip" {
		body = unzip(t, body)
	}
	require.Equal(t, want, body, "compressed")
}

// FuzzForms lists objects of any content as Tables and as metadata, while they
// change, and compares with what the server makes of each list.
func FuzzForms(f *testing.F) {
	f.Add([]byte("\x01\x02\x03\x04\x05\x06\x07"))
	f.Add([]byte("\x00\"rows\":[{\"cells\":[\x01,\"object\":null}\xff\xe2\x80\xa9<&\\u0000"))
	for seed := range uint64(4) {
		data := make([]byte, 300)
		_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(data)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in := choices(data)
		lists := newFormed([]int{0, 1, 20, 70}[in.of(4)], pod, podList)
		for step := 2; step < 30 && len(in) > 0; step++ {
			lists.now = in.of(4)
			if n := len(lists.elements); n > 0 && in.of(2) == 0 {
				at := in.of(n)
				changed := pod(at, step)
				m := changed.Object.(metav1.Object)
				labels := maps.Clone(m.GetLabels())
				if labels == nil {
					labels = map[string]string{}
				}
				labels[in.text()] = in.text()
				m.SetLabels(labels)
				lists.elements[at] = changed
			}
			switch in.of(3) {
			case 0:
				lists.list(t, jsonSyntax, true)
			case 1:
				lists.list(t, jsonSyntax, false)
			default:
				lists.list(t, protobufSyntax, false)
			}
		}
		requireNotRefused(t, lists.encoder[jsonSyntax].serializer)
	})
}
