// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// formed is a cache whose lists are wanted in forms.
type formed struct {
	listings Encoder
	store    *Store
	elements []*watchcache.Element
	newList  func([]*watchcache.Element) apiruntime.Object
	encoder  map[syntax]*listEncoder
	// encoded counts the objects whose metadata was encoded, longest is how many were
	// encoded at once at most.
	encoded, longest int
	// now is what cells tell; table changes the Table that the registry makes.
	now   int
	table func(*metav1.Table) error
}

func newFormed(objects int, one func(i, rv int) *watchcache.Element, newList func([]*watchcache.Element) apiruntime.Object) *formed {
	f := &formed{newList: newList, encoder: map[syntax]*listEncoder{}}
	f.store = storeOf(&f.listings, 64<<20)
	f.listings.on.Store(true)
	s := &serializer{listings: &f.listings}
	for _, syntax := range []syntax{jsonSyntax, protobufSyntax} {
		f.encoder[syntax] = &listEncoder{Encoder: failing{}, serializer: s, syntax: syntax}
	}
	for i := range objects {
		f.elements = append(f.elements, one(i, 1))
	}
	return f
}

// failing is an encoder of lists that should not be asked.
type failing struct{}

func (failing) Identifier() apiruntime.Identifier         { return "failing" }
func (failing) Encode(apiruntime.Object, io.Writer) error { return errors.New("encoded as a list") }

func pod(i, rv int) *watchcache.Element {
	object := &example.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: fmt.Sprintf("pod-%05d", i), ResourceVersion: fmt.Sprint(rv),
		Labels:      map[string]string{"app": "a", "tier": "b", "version": "c"},
		Annotations: map[string]string{"text": strings.Repeat("0123456789 text", 200)},
	}}
	return &watchcache.Element{Key: "/pods/ns/" + object.Name, RV: uint64(rv), Object: object}
}

func podList(elements []*watchcache.Element) apiruntime.Object {
	left := int64(3)
	list := &example.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: "c<>", RemainingItemCount: &left}, Items: []example.Pod{}}
	for _, e := range elements {
		list.Items = append(list.Items, *e.Object.(*example.Pod))
	}
	return list
}

// countingMetaEncoder counts the metadata that is encoded.
type countingMetaEncoder struct {
	apiruntime.Encoder
	f *formed
}

func (e countingMetaEncoder) Encode(object apiruntime.Object, w io.Writer) error {
	count := 0
	switch object := object.(type) {
	case *metav1.PartialObjectMetadataList:
		count = len(object.Items)
	case *metav1.Table:
		for _, row := range object.Rows {
			if row.Object.Object != nil {
				count++
			}
		}
	}
	e.f.encoded += count
	e.f.longest = max(e.f.longest, count)
	return e.Encoder.Encode(object, w)
}

// registryTable makes a Table as a registry does, with cells that depend on the time.
func (f *formed) registryTable(_ context.Context, list apiruntime.Object) (*metav1.Table, error) {
	own := list.(metav1.ListInterface)
	table := &metav1.Table{
		ListMeta:          metav1.ListMeta{ResourceVersion: own.GetResourceVersion(), Continue: own.GetContinue()},
		ColumnDefinitions: []metav1.TableColumnDefinition{{Name: "Name", Type: "string", Description: `"rows":[`}, {Name: "Age", Type: "string"}},
	}
	err := meta.EachListItem(list, func(object apiruntime.Object) error {
		m, err := meta.Accessor(object)
		row := metav1.TableRow{Cells: []any{m.GetName(), fmt.Sprintf("<%ds>", f.now), int64(f.now), nil}, Object: apiruntime.RawExtension{Object: object}}
		if strings.HasSuffix(m.GetName(), "7") {
			row.Conditions = []metav1.TableRowCondition{{Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Message: noObject}}
		}
		table.Rows = append(table.Rows, row)
		return err
	})
	if f.table != nil && err == nil {
		err = f.table(table)
	}
	return table, err
}

// list lists the elements in a form, compares with what the server makes of them,
// and returns how many objects' metadata was encoded.
func (f *formed) list(t *testing.T, s syntax, asTable bool, change ...func(apiruntime.Object)) int {
	t.Helper()
	list := f.newList(f.elements)
	form := &Representation{Encoder: countingMetaEncoder{metaEncoder(t, mediaTypes[s]), f}}
	if asTable {
		form.Table = f.registryTable
	}
	ctx, end := f.listings.Represent(t.Context(), form)
	f.listings.Note(ctx, list, f.elements, f.store)
	f.listings.NoteRead(ctx, list)
	for _, c := range change {
		c(list)
	}
	var want, got bytes.Buffer
	f.expected(t, s, asTable, list, &want)
	f.encoded = 0
	require.NoError(t, f.encoder[s].Encode(list, &got))
	if s == protobufSyntax || f.table != nil || len(change) > 0 {
		// The server itself makes long lists that can't be put together.
		require.True(t, form.Written() || len(f.elements) > batchItems && !form.Unused())
	} else {
		require.True(t, form.Written())
	}
	if form.Written() {
		require.Equal(t, want.String(), got.String())
	} else {
		require.Zero(t, got.Len())
	}
	end()
	require.Empty(t, f.listings.mu.lists)
	require.ErrorContains(t, f.encoder[s].Encode(list, io.Discard), "encoded as a list", "once the form is ended, the list is a list")
	return f.encoded
}

// expected writes what the server makes of a list.
func (f *formed) expected(t *testing.T, s syntax, asTable bool, list apiruntime.Object, w io.Writer) {
	t.Helper()
	var object apiruntime.Object
	if asTable {
		table, err := f.registryTable(t.Context(), list)
		require.NoError(t, err)
		for i := range table.Rows {
			m, err := meta.Accessor(table.Rows[i].Object.Object)
			require.NoError(t, err)
			partial := meta.AsPartialObjectMetadata(m)
			partial.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"))
			table.Rows[i].Object.Object = partial
		}
		object = table
	} else {
		own := list.(metav1.ListInterface)
		partials := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{
			ResourceVersion: own.GetResourceVersion(), Continue: own.GetContinue(), RemainingItemCount: own.GetRemainingItemCount(),
		}}
		require.NoError(t, meta.EachListItem(list, func(o apiruntime.Object) error {
			m, err := meta.Accessor(o)
			partial := meta.AsPartialObjectMetadata(m)
			partial.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"))
			partials.Items = append(partials.Items, *partial)
			return err
		}))
		object = partials
	}
	require.NoError(t, metaEncoder(t, mediaTypes[s]).Encode(object, w))
}

var mediaTypes = map[syntax]string{jsonSyntax: apiruntime.ContentTypeJSON, protobufSyntax: apiruntime.ContentTypeProtobuf}

// ofRow returns a change of the row of one pod, in whatever Table it is.
func ofRow(pod int, change func(*metav1.TableRow)) func(*metav1.Table) error {
	return func(table *metav1.Table) error {
		for i := range table.Rows {
			if row := &table.Rows[i]; row.Cells[0] == fmt.Sprintf("pod-%05d", pod) {
				change(row)
			}
		}
		return nil
	}
}

// Metadata is encoded when it has changed; cells are made for each request.
func TestForms(t *testing.T) {
	f := newFormed(200, pod, podList)
	atMost := func(limit, encoded int) {
		if !checkEach { // with invariants each list is encoded for comparison
			require.LessOrEqual(t, encoded, limit)
		}
	}
	f.list(t, jsonSyntax, true)
	require.Zero(t, f.store.Bytes())
	f.list(t, jsonSyntax, true)
	require.Positive(t, f.store.Bytes())
	for f.now = range 4 {
		atMost(1, f.list(t, jsonSyntax, true))
	}
	f.list(t, jsonSyntax, false) // compared with the server's once
	atMost(1, f.list(t, jsonSyntax, false))
	for range 3 {
		f.list(t, protobufSyntax, false)
	}
	atMost(1, f.list(t, protobufSyntax, false))
	for i := range 5 {
		f.elements[i*31] = pod(i*31, 2)
	}
	atMost(6, f.list(t, jsonSyntax, true))
	atMost(1, f.list(t, jsonSyntax, false))
	atMost(6, f.list(t, protobufSyntax, false))

	// Items that are not as the cache has put them in.
	for _, s := range []syntax{jsonSyntax, protobufSyntax} {
		for _, asTable := range []bool{s == jsonSyntax, false} {
			f.list(t, s, asTable, func(list apiruntime.Object) {
				items, _ := itemsOf(list)
				items.Index(3).Addr().Interface().(metav1.Object).SetLabels(map[string]string{"a": "decorated"})
			})
			f.list(t, s, asTable, func(list apiruntime.Object) {
				items, _ := itemsOf(list)
				swap := reflect.Swapper(items.Interface())
				swap(1, 2)
			})
			f.list(t, s, asTable, func(list apiruntime.Object) {
				items, _ := itemsOf(list)
				items.Set(items.Slice(0, 7))
			})
			f.list(t, s, asTable, func(list apiruntime.Object) {
				items, _ := itemsOf(list)
				items.SetZero()
			})
		}
	}
	for _, change := range []func(*metav1.Table) error{
		func(table *metav1.Table) error { table.Rows = table.Rows[min(1, len(table.Rows)):]; return nil },
		func(table *metav1.Table) error { slices.Reverse(table.Rows); return nil },
		func(table *metav1.Table) error { table.Rows = nil; return nil },
		func(table *metav1.Table) error { table.Rows = []metav1.TableRow{}; return nil },
		ofRow(5, func(row *metav1.TableRow) { row.Object = apiruntime.RawExtension{Object: &example.Pod{}} }),
		ofRow(5, func(row *metav1.TableRow) { row.Cells = nil }),
		ofRow(5, func(row *metav1.TableRow) { row.Cells = []any{map[string]any{"object": nil}, 1.5, true} }),
	} {
		f.table = change
		f.list(t, jsonSyntax, true)
	}
	f.table = nil
	atMost(1, f.list(t, jsonSyntax, true))
}

// Forms that can't be written are refused before the first byte.
func TestRefusedForms(t *testing.T) {
	f := newFormed(50, pod, podList)
	none := func(context.Context, apiruntime.Object) (*metav1.Table, error) { return nil, errors.New("none") }
	broken := func(ctx context.Context, list apiruntime.Object) (*metav1.Table, error) {
		table, err := f.registryTable(ctx, list)
		return table, errors.Join(err, ofRow(20, func(row *metav1.TableRow) { row.Object.Object = nil })(table))
	}
	cell := func(ctx context.Context, list apiruntime.Object) (*metav1.Table, error) {
		table, err := f.registryTable(ctx, list)
		return table, errors.Join(err, ofRow(20, func(row *metav1.TableRow) { row.Cells = append(row.Cells, func() {}) })(table))
	}
	for range 4 {
		f.list(t, jsonSyntax, true)
	}
	for name, c := range map[string]struct {
		syntax syntax
		list   apiruntime.Object
		table  func(context.Context, apiruntime.Object) (*metav1.Table, error)
	}{
		"an error":            {jsonSyntax, podList(f.elements), none},
		"no object":           {jsonSyntax, podList(f.elements), broken},
		"Tables in protobuf":  {protobufSyntax, podList(f.elements), f.registryTable},
		"what is not a list":  {jsonSyntax, &example.Pod{}, nil},
		"not one in protobuf": {protobufSyntax, &example.Pod{}, nil},
		"a cell of no format": {jsonSyntax, podList(f.elements), cell},
	} {
		t.Run(name, func(t *testing.T) {
			form := &Representation{Encoder: metaEncoder(t, mediaTypes[c.syntax]), Table: c.table}
			ctx, end := f.listings.Represent(t.Context(), form)
			f.listings.Note(ctx, c.list, f.elements, f.store)
			f.listings.NoteRead(ctx, c.list)
			defer end()
			var got bytes.Buffer
			require.NoError(t, f.encoder[c.syntax].Encode(c.list, &got))
			require.False(t, form.Written() || form.Unused())
			require.Empty(t, got.String())
		})
	}
	f.list(t, jsonSyntax, true)
}

// The latest list of a request is the one that is wanted.
func TestWantedLists(t *testing.T) {
	var l Encoder
	wanted := &Representation{}
	ctx, end := l.Represent(t.Context(), wanted)
	first, second := podList(nil), podList(nil)
	l.NoteRead(ctx, first)
	require.Nil(t, l.find(first), "nothing is wanted before Serializer was called")
	l.on.Store(true)
	l.NoteRead(t.Context(), first)
	require.Nil(t, l.find(first))
	l.NoteRead(ctx, first)
	require.Same(t, wanted, l.find(first).wanted)
	l.NoteRead(ctx, second)
	require.Nil(t, l.find(first))
	require.Same(t, wanted, l.find(second).wanted)
	end()
	end()
	require.Empty(t, l.mu.lists)
}

// No encoder is given a whole Table after the first: it would need several times the
// memory of the whole.
func TestTablesAreEncodedSomeRowsAtATime(t *testing.T) {
	if checkEach {
		t.Skip("with invariants each list is encoded for comparison")
	}
	f := newFormed(3000, pod, podList)
	f.list(t, jsonSyntax, true) // compared with the server's once
	f.longest = 0
	for range 3 {
		f.list(t, jsonSyntax, true)
		require.LessOrEqual(t, f.longest, batchItems+maxChunkItems)
	}
}
