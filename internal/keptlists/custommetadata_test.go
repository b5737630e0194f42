// SPDX-License-Identifier: Apache-2.0

package keptlists

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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/util/apihelpers"

	"github.com/kube-watchcache/watchcache/watchcache"
)

func metaEncoder(t testing.TB, mediaType string) runtime.Encoder {
	codecs := apihelpers.GetMetaInternalVersionCodecs()
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), mediaType)
	require.True(t, ok)
	return codecs.EncoderForVersion(info.Serializer, metav1.SchemeGroupVersion)
}

// newFormServer returns a server whose lists are asked for in a form, which it writes
// as k8s.io/apiserver does: the metadata in a media type, or the objects themselves.
func newFormServer(t *testing.T, n int, metadata string) *customServer {
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
	if metadata != "" {
		s.form.Metadata = metaEncoder(t, metadata)
		s.form.Protobuf = metadata == runtime.ContentTypeProtobuf
		s.write = s.writeMetadata
	}
	return s
}

func (s *customServer) writeMetadata(w http.ResponseWriter, _ *http.Request, list *unstructured.UnstructuredList) {
	var items []metav1.PartialObjectMetadata
	for i := range list.Items {
		partial := meta.AsPartialObjectMetadata(&list.Items[i])
		partial.SetGroupVersionKind(metadataKind)
		items = append(items, *partial)
	}
	own := metav1.ListMeta{ResourceVersion: list.GetResourceVersion()}
	made := &metav1.PartialObjectMetadataList{ListMeta: own, Items: items}
	var b bytes.Buffer
	_ = s.form.Metadata.Encode(made, &b)
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(s.edit(b.Bytes()))
}

// customForms has the media types of metadata.
var customForms = map[string]string{
	"whole objects":      "",
	"metadata":           runtime.ContentTypeJSON,
	"metadata, protobuf": runtime.ContentTypeProtobuf,
}

// Lists, in any form, are answered from kept bytes, while objects change: the server
// writes the items of the first lists, and none afterwards.
func TestCustomResources(t *testing.T) {
	for name, mediaType := range customForms {
		t.Run(name, func(t *testing.T) {
			s := newFormServer(t, 200, mediaType)
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
		for form, mediaType := range customForms {
			if name == "no form" && mediaType == "" {
				continue // which is as expected
			}
			t.Run(form+" with "+name, func(t *testing.T) {
				s := newFormServer(t, 30, mediaType)
				c.change(s)
				for range 4 {
					s.expect(t, false)
					require.Equal(t, 1, s.asked)
					require.Equal(t, 30, s.written)
				}
				_, proven := s.store.customFormat(s.form).users.Get("")
				require.False(t, proven)
			})
			t.Run(form+" with "+name+" later", func(t *testing.T) {
				s := newFormServer(t, 30, mediaType)
				for range 4 {
					s.expect(t, false)
				}
				format := s.store.customFormat(s.form)
				_, proven := format.users.Get("")
				require.True(t, proven)
				c.change(s)
				if c.unseen {
					return
				}
				s.expect(t, false)
				require.Equal(t, 2, s.asked, "once more, as it came")
				require.True(t, format.refused.Load())
				s.expect(t, true)
				require.Equal(t, 1, s.asked)
				other := CustomList{Protobuf: !s.form.Protobuf}
				require.False(t, s.store.customFormat(other).refused.Load(), "other forms are not concerned")
			})
		}
	}
}
