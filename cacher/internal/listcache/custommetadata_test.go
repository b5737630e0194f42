// SPDX-License-Identifier: Apache-2.0

package listcache

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/util/apihelpers"

	"github.com/kube-watchcache/watchcache/watchcache"
)

func metaEncoder(t *testing.T, mediaType, version string) runtime.Encoder {
	codecs := apihelpers.GetMetaInternalVersionCodecs()
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), mediaType)
	require.True(t, ok)
	return codecs.EncoderForVersion(info.Serializer, schema.GroupVersion{Group: metav1.GroupName, Version: version})
}

// newFormServer returns a server whose lists are asked for in a form, which it writes
// as k8s.io/apiserver does; the form of no version is the objects themselves.
func newFormServer(t *testing.T, n int, mediaType string, form CustomMetadata) *customServer {
	s := newCustomServer(n)
	for i, e := range s.elements {
		o := e.Object.(*unstructured.Unstructured)
		long := 50
		if n < 100 {
			long, o.Object["spec"] = 1, "short"
		}
		o.SetUID("u")
		o.SetAnnotations(map[string]string{"long": strings.Repeat("\"object\":null}<é>", long), "n": fmt.Sprint("n", i)})
	}
	if form.Version != "" {
		form.Encoder = metaEncoder(t, mediaType, form.Version)
		form.Protobuf = mediaType == runtime.ContentTypeProtobuf
		s.form, s.write = form, s.writeMetadata
	}
	return s
}

func (s *customServer) metadataOf(o *unstructured.Unstructured) *metav1.PartialObjectMetadata {
	partial := meta.AsPartialObjectMetadata(o)
	partial.SetGroupVersionKind(schema.GroupVersionKind{Group: metav1.GroupName, Version: s.form.Version, Kind: "PartialObjectMetadata"})
	return partial
}

func (s *customServer) writeMetadata(w http.ResponseWriter, _ *http.Request, list *unstructured.UnstructuredList) {
	var items []metav1.PartialObjectMetadata
	for i := range list.Items {
		items = append(items, *s.metadataOf(&list.Items[i]))
	}
	own := metav1.ListMeta{ResourceVersion: list.GetResourceVersion()}
	var made runtime.Object = &metav1.PartialObjectMetadataList{ListMeta: own, Items: items}
	if s.form.Version == "v1beta1" {
		made = &metav1beta1.PartialObjectMetadataList{ListMeta: own, Items: items}
	}
	var b bytes.Buffer
	_ = s.form.Encoder.Encode(made, &b)
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(s.edit(b.Bytes()))
}

var customForms = map[string]struct {
	mediaType string
	form      CustomMetadata
}{
	"whole objects":      {runtime.ContentTypeJSON, CustomMetadata{}},
	"metadata":           {runtime.ContentTypeJSON, CustomMetadata{Version: "v1"}},
	"metadata, v1beta1":  {runtime.ContentTypeJSON, CustomMetadata{Version: "v1beta1"}},
	"metadata, protobuf": {runtime.ContentTypeProtobuf, CustomMetadata{Version: "v1"}},
}

// Lists, in any form, are answered from kept bytes, while objects change: the server
// writes the items of the first lists, and none afterwards.
func TestCustomResources(t *testing.T) {
	for name, c := range customForms {
		t.Run(name, func(t *testing.T) {
			s := newFormServer(t, 200, c.mediaType, c.form)
			var own countingWrites
			write := s.write
			s.write = func(w http.ResponseWriter, r *http.Request, list *unstructured.UnstructuredList) {
				own.ResponseWriter = w
				own.n = 0
				write(&own, r, list)
			}
			for round := range 12 {
				s.get(t, round%2 == 1)
				if round >= 3 {
					require.Less(t, own.n, 20_000, "in round %d", round)
				} else if round == 0 {
					require.Greater(t, own.n, 100_000)
				}
				s.expect(t, round%2 == 1)
				require.Equal(t, 1, s.asked)
				if round%4 == 3 {
					s.change(round)
				}
			}
		})
	}
}

type countingWrites struct {
	http.ResponseWriter
	n int
}

func (w *countingWrites) Write(p []byte) (int, error) {
	w.n += len(p)
	return w.ResponseWriter.Write(p)
}

// change replaces an object, takes one out and adds one.
func (s *customServer) change(round int) {
	s.elements = slices.Clone(s.elements)
	was := s.elements[50]
	o := was.Object.(*unstructured.Unstructured).DeepCopy()
	o.SetLabels(map[string]string{"round": fmt.Sprint(round)})
	s.elements[50] = &watchcache.Element{Key: was.Key, RV: uint64(1000 + round), Object: o}
	s.elements = slices.Delete(s.elements, 20, 21)
}

// A server that writes lists otherwise than expected answers as ever, from the
// beginning or from some list on.
func TestCustomResourcesOfAnotherServer(t *testing.T) {
	replace := func(from, to string) func(*customServer) {
		return func(s *customServer) {
			s.edit = func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(from), []byte(to)) }
		}
	}
	for name, c := range map[string]struct {
		// unseen: a list without items has no such difference.
		unseen bool
		change func(*customServer)
	}{
		"another version of the list": {change: func(s *customServer) {
			write := s.write
			s.write = func(w http.ResponseWriter, r *http.Request, list *unstructured.UnstructuredList) {
				list.SetResourceVersion("8")
				write(w, r, list)
			}
		}},
		"another kind":    {change: replace("List", "list")},
		"converted items": {change: replace("po17", "op17"), unseen: true},
		"more":            {change: replace("\n", "\n ")},
		"no form":         {change: func(s *customServer) { s.write = s.writeCustom }},
		"an error": {change: func(s *customServer) {
			s.write = func(w http.ResponseWriter, _ *http.Request, _ *unstructured.UnstructuredList) {
				http.Error(w, "no", http.StatusInternalServerError)
			}
		}},
		"nothing": {change: func(s *customServer) {
			s.write = func(http.ResponseWriter, *http.Request, *unstructured.UnstructuredList) {}
		}, unseen: true},
		"half of it": {change: func(s *customServer) { s.edit = func(b []byte) []byte { return b[:len(b)/2] } }},
	} {
		for form, asked := range customForms {
			if name == "no form" && asked.form.Version == "" {
				continue // which is as expected
			}
			t.Run(form+" with "+name, func(t *testing.T) {
				s := newFormServer(t, 30, asked.mediaType, asked.form)
				c.change(s)
				for range 4 {
					s.expect(t, false)
					require.Equal(t, 1, s.asked)
					require.Equal(t, 30, s.written)
				}
				require.False(t, s.store.custom.proof(CustomList{Metadata: s.form}.kind()).has(""))
			})
			t.Run(form+" with "+name+" later", func(t *testing.T) {
				s := newFormServer(t, 30, asked.mediaType, asked.form)
				for range 4 {
					s.expect(t, false)
				}
				proof := s.store.custom.proof(CustomList{Metadata: s.form}.kind())
				require.True(t, proof.has(""))
				c.change(s)
				if c.unseen {
					return
				}
				s.expect(t, false)
				require.Equal(t, 2, s.asked, "once more, as it came")
				require.True(t, proof.refused.Load())
				s.expect(t, true)
				require.Equal(t, 1, s.asked)
				require.False(t, s.store.custom.proof(customKind{version: "other"}).refused.Load(), "other forms are not concerned")
			})
		}
	}
}
