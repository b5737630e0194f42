// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

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
// as k8s.io/apiserver does.
func newFormServer(t *testing.T, n int, mediaType string, form AskedForm) *customServer {
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
	form.Encoder = metaEncoder(t, mediaType, form.Version)
	form.Protobuf = mediaType == runtime.ContentTypeProtobuf
	s.form = &form
	s.edit = func(b []byte) []byte { return b }
	s.write = s.writeMetadata
	if form.Table {
		s.write = s.writeTable
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

func (s *customServer) writeTable(w http.ResponseWriter, r *http.Request, list *unstructured.UnstructuredList) {
	s.respond(w, r, s.tableOf(r, list))
}

func (s *customServer) tableOf(r *http.Request, list *unstructured.UnstructuredList) *metav1.Table {
	made := &metav1.Table{
		ListMeta:          metav1.ListMeta{ResourceVersion: list.GetResourceVersion()},
		ColumnDefinitions: []metav1.TableColumnDefinition{{Name: "Name", Description: `"rows":[`}},
		Rows:              []metav1.TableRow{},
	}
	for i := range list.Items {
		o := &list.Items[i]
		row := metav1.TableRow{Cells: []any{o.GetName(), int64(i), nil, `"object":null}`, s.age}}
		switch {
		case r.URL.Query().Get("includeObject") == "None":
		case s.form.Objects:
			row.Object.Object = o
		default:
			row.Object.Object = s.metadataOf(o)
		}
		made.Rows = append(made.Rows, row)
	}
	return made
}

// respond writes a Table, compressed if it is long.
func (s *customServer) respond(w http.ResponseWriter, r *http.Request, table *metav1.Table) {
	var b bytes.Buffer
	_ = s.form.Encoder.Encode(table, &b)
	written := s.edit(b.Bytes())
	if len(written) <= compressedFrom || r.Header.Get("Accept-Encoding") != "gzip" {
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(written)
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Set("Vary", "Accept-Encoding")
	w.WriteHeader(http.StatusOK)
	zipped := gzip.NewWriter(w)
	_, _ = zipped.Write(written)
	_ = zipped.Close()
}

var answerForms = map[string]struct {
	mediaType string
	form      AskedForm
}{
	"metadata":                    {runtime.ContentTypeJSON, AskedForm{Version: "v1"}},
	"metadata, v1beta1":           {runtime.ContentTypeJSON, AskedForm{Version: "v1beta1"}},
	"metadata, protobuf":          {runtime.ContentTypeProtobuf, AskedForm{Version: "v1"}},
	"Table":                       {runtime.ContentTypeJSON, AskedForm{Version: "v1", Table: true}},
	"Table, v1beta1":              {runtime.ContentTypeJSON, AskedForm{Version: "v1beta1", Table: true}},
	"Table with objects":          {runtime.ContentTypeJSON, AskedForm{Version: "v1", Table: true, Objects: true}},
	"Table with objects, v1beta1": {runtime.ContentTypeJSON, AskedForm{Version: "v1beta1", Table: true, Objects: true}},
}

// Lists in other forms are answered from kept bytes, too, while objects and cells change.
func TestAnswersInForms(t *testing.T) {
	for name, c := range answerForms {
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
				if round%3 == 2 {
					s.age = time.Duration(round).String()
				}
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

// A server that writes a form otherwise than expected answers as ever, from the
// beginning or from some list on.
func TestAnswersInFormsOfAnotherServer(t *testing.T) {
	replace := func(from, to string) func(*customServer) {
		return func(s *customServer) {
			s.edit = func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(from), []byte(to)) }
		}
	}
	tables := func(change func(*metav1.Table)) func(*customServer) {
		return func(s *customServer) {
			s.write = func(w http.ResponseWriter, r *http.Request, list *unstructured.UnstructuredList) {
				table := s.tableOf(r, list)
				change(table)
				s.respond(w, r, table)
			}
		}
	}
	for name, c := range map[string]struct {
		lists, tables bool // only
		// unseen: a list without items has no such difference.
		unseen bool
		change func(*customServer)
	}{
		"another version of the list": {lists: true, change: func(s *customServer) {
			write := s.write
			s.write = func(w http.ResponseWriter, r *http.Request, list *unstructured.UnstructuredList) {
				list.SetResourceVersion("8")
				write(w, r, list)
			}
		}},
		"another kind":    {change: replace("PartialObjectMetadata", "partialObjectMetadata")},
		"converted items": {change: replace("po17", "op17"), unseen: true},
		"more":            {change: replace("\n", "\n ")},
		"no form":         {change: func(s *customServer) { s.write = writeCustom }},
		"an error": {change: func(s *customServer) {
			s.write = func(w http.ResponseWriter, _ *http.Request, _ *unstructured.UnstructuredList) {
				http.Error(w, "no", http.StatusInternalServerError)
			}
		}},
		"nothing": {change: func(s *customServer) {
			s.write = func(http.ResponseWriter, *http.Request, *unstructured.UnstructuredList) {}
		}, unseen: true},
		"half of it":       {change: func(s *customServer) { s.edit = func(b []byte) []byte { return b[:len(b)/2] } }},
		"a row less":       {tables: true, change: tables(func(t *metav1.Table) { t.Rows = t.Rows[:len(t.Rows)-1] })},
		"a row more":       {tables: true, change: tables(func(t *metav1.Table) { t.Rows = append(t.Rows, t.Rows[0]) })},
		"rows reversed":    {tables: true, change: tables(func(t *metav1.Table) { slices.Reverse(t.Rows) })},
		"two rows for one": {tables: true, change: tables(func(t *metav1.Table) { t.Rows[5] = t.Rows[4] })},
		"no rows":          {tables: true, change: tables(func(t *metav1.Table) { t.Rows = []metav1.TableRow{} })},
		"no name":          {tables: true, change: tables(func(t *metav1.Table) { t.Rows[3].Cells = nil })},
		"objects for none": {tables: true, change: tables(func(t *metav1.Table) {
			t.Rows[3].Object = runtime.RawExtension{Raw: []byte(`{"kind":"x","apiVersion":"y"}`)}
		})},
	} {
		for form, asked := range answerForms {
			if (c.tables && !asked.form.Table) || (c.lists && asked.form.Table) ||
				(name == "another kind" && asked.form.Objects) || (name == "more" && asked.form.Protobuf) { // which have no such bytes
				continue
			}
			t.Run(form+" with "+name, func(t *testing.T) {
				s := newFormServer(t, 30, asked.mediaType, asked.form)
				c.change(s)
				for range 4 {
					s.expect(t, false)
					require.Equal(t, 1, s.asked)
					require.Equal(t, 30, s.written)
				}
				require.False(t, s.store.answers.judgement(Asked{Form: s.form}.id()).proven.Load())
			})
			t.Run(form+" with "+name+" later", func(t *testing.T) {
				s := newFormServer(t, 30, asked.mediaType, asked.form)
				for range 4 {
					s.expect(t, false)
				}
				judged := s.store.answers.judgement(Asked{Form: s.form}.id())
				require.True(t, judged.proven.Load())
				c.change(s)
				if c.unseen || (name == "another kind" && asked.form.Table) {
					return
				}
				s.expect(t, false)
				require.Equal(t, 2, s.asked, "once more, as it came")
				require.True(t, judged.refused.Load())
				s.expect(t, true)
				require.Equal(t, 1, s.asked)
				other := &AskedForm{Version: "v1", Encoder: metaEncoder(t, runtime.ContentTypeJSON, "v1"), Table: !asked.form.Table}
				require.False(t, s.store.answers.judgement(Asked{Form: other}.id()).refused.Load(), "other forms are not concerned")
			})
		}
	}
}

// The server does not compress cells, however long they are: the Table is, as a whole.
func TestAnswersWithLongCells(t *testing.T) {
	s := newFormServer(t, 200, runtime.ContentTypeJSON, AskedForm{Version: "v1", Table: true})
	for _, s.age = range []string{strings.Repeat("0123456789", 100), strings.Repeat("9876543210", 100)} {
		for range 4 {
			s.expect(t, true)
			require.Equal(t, 1, s.asked)
		}
	}
}
