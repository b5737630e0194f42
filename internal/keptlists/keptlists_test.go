// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// resource is a cache as an encoder sees it: its elements, in the order of keys.
type resource struct {
	listings Encoder
	store    *Store
	elements []*watchcache.Element
	encoder  *listEncoder
	// encoded counts the items that the server's own encoder has encoded; spoil
	// changes what it writes.
	encoded int
	spoil   func(list *metav1.PartialObjectMetadataList, written []byte) []byte
}

// storeOf returns a Store that may keep so many bytes.
func storeOf(l *Encoder, limit int64) *Store {
	s := l.newStore(schema.GroupResource{})
	s.SetLimit(limit)
	return s
}

func newResource(budget int64, objects int) *resource {
	r := &resource{}
	r.store = storeOf(&r.listings, budget)
	r.listings.on.Store(true)
	r.encoder = &listEncoder{Encoder: r, serializer: &serializer{listings: &r.listings}, syntax: jsonSyntax}
	for i := range objects {
		r.elements = append(r.elements, element(i, 1))
	}
	return r
}

func element(i, rv int) *watchcache.Element {
	key := fmt.Sprintf("/devices/d%04d", i)
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: key, ResourceVersion: fmt.Sprint(rv), Labels: map[string]string{"a": "b", "text": fmt.Sprintf("%0200d", i)},
	}}
	return &watchcache.Element{Key: key, RV: uint64(rv), Object: object}
}

func (r *resource) Identifier() apiruntime.Identifier { return "stock" }

func (r *resource) Encode(object apiruntime.Object, w io.Writer) error {
	list := object.(*metav1.PartialObjectMetadataList)
	r.encoded += len(list.Items)
	written, err := json.Marshal(list)
	if err != nil {
		return err
	}
	if r.spoil != nil {
		written = r.spoil(list, written)
	}
	_, err = w.Write(written)
	return err
}

func listOf(elements []*watchcache.Element) *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []metav1.PartialObjectMetadata{}}
	for _, e := range elements {
		list.Items = append(list.Items, *e.Object.(*metav1.PartialObjectMetadata))
	}
	return list
}

// list lists the elements, compares with what the server's own encoder makes of
// them, and returns how many items were encoded.
func (r *resource) list(t *testing.T, elements []*watchcache.Element, change ...func(*metav1.PartialObjectMetadataList)) int {
	t.Helper()
	list := listOf(elements)
	ctx, end := r.listings.Begin(t.Context())
	defer end()
	r.listings.Note(ctx, list, elements, r.store)
	for _, c := range change {
		c(list)
	}
	var want, got bytes.Buffer
	require.NoError(t, r.Encode(list, &want))
	r.encoded = 0
	require.NoError(t, r.encoder.Encode(list, &got))
	require.Equal(t, want.String(), got.String())
	return r.encoded
}

// The first list is compared with the encoder's, the second one is kept, and from then on only
// changes are encoded, wherever they are.
func TestOnlyChangesAreEncoded(t *testing.T) {
	if checkEach {
		t.Skip("with invariants each list is encoded for comparison")
	}
	r := newResource(1<<20, 500)
	require.Greater(t, r.list(t, r.elements), 3*500, "the first list is compared")
	require.Zero(t, r.store.Bytes(), "nothing is kept for a list that nobody has repeated")
	require.Equal(t, 501, r.list(t, r.elements))
	require.Equal(t, 1, r.list(t, r.elements), "the frame is learnt from one item")
	require.Equal(t, 1, r.list(t, r.elements), "the frame is learnt from one item")

	r.elements[250] = element(250, 2)
	require.Equal(t, 2, r.list(t, r.elements))
	// Where chunks begin depends on the hashes of keys, which differ from run to run.
	before := beginnings(r.elements)
	for gone := 300; ; gone++ {
		without := slices.Delete(slices.Clone(r.elements), gone, gone+1)
		if slices.Equal(beginnings(without), before) {
			r.elements = without
			break
		}
	}
	require.Equal(t, 1, r.list(t, r.elements))
	// A chunk that is as long as chunks get has no room: the next place is tried.
	for at := 10; ; at++ {
		added := &watchcache.Element{Key: r.elements[at-1].Key + "x", RV: 9, Object: element(9000, 9).Object}
		with := slices.Insert(slices.Clone(r.elements), at, added)
		if slices.Equal(beginnings(with), before) {
			r.elements = with
			break
		}
	}
	require.Equal(t, 2, r.list(t, r.elements))
	require.Equal(t, 1, r.list(t, r.elements))

	// Lists of other scopes share the chunks that are whole in them.
	require.Less(t, r.list(t, r.elements[100:400]), 151)
	require.Less(t, r.list(t, r.elements[100:400]), 150)
	require.Equal(t, 1, r.list(t, r.elements[100:400]))
}

// Of lists of which everything changes from one to the next nothing is kept, but for one now and
// then, and bytes are kept again as soon as it ends.
func TestListsThatChangeAltogether(t *testing.T) {
	if checkEach {
		t.Skip("with invariants each list is encoded for comparison")
	}
	r := newResource(1<<20, 500)
	for range 3 {
		r.list(t, r.elements)
	}
	kept := 0
	for rv := 2; rv < 100; rv++ {
		for i := range r.elements {
			r.elements[i] = element(i, rv)
		}
		require.Equal(t, 501, r.list(t, r.elements))
		kept += r.keeps()
	}
	require.LessOrEqual(t, kept, 10*500, "items, of 98 lists")
	r.list(t, r.elements)
	require.Equal(t, 1, r.list(t, r.elements))
	for i := range 100 { // a fifth is encoded at once, and only once
		r.elements[i*5] = element(i*5, 10)
	}
	require.Equal(t, 101, r.list(t, r.elements))
	require.Equal(t, 1, r.list(t, r.elements))
}

// keeps returns how many of the elements are in chunks that the store keeps.
func (r *resource) keeps() (n int) {
	r.store.mu.RLock()
	defer r.store.mu.RUnlock()
	for _, p := range cut(r.elements) {
		for at, variants := range r.store.mu.chunks {
			if at.key == p.elements[0].Key && slices.ContainsFunc(variants, func(c *chunk) bool { return slices.Equal(c.ids, p.ids) }) {
				n += len(p.ids)
			}
		}
	}
	return n
}

// Lists are put together of kept bytes again soon after everything has changed, though
// some of the objects change between any two lists.
func TestListsAfterManyChanges(t *testing.T) {
	if checkEach {
		t.Skip("with invariants each list is encoded for comparison")
	}
	const objects = 2000
	r := newResource(16<<20, objects)
	random := rand.New(rand.NewPCG(1, 2))
	rv := 1
	change := func(n int) {
		rv++
		for _, i := range random.Perm(objects)[:n] {
			r.elements[i] = element(i, rv)
		}
	}
	for range 4 {
		r.list(t, r.elements)
	}
	for round := range 5 {
		change(objects)
		var encoded []int
		for range 12 {
			change(objects / 10)
			encoded = append(encoded, r.list(t, r.elements))
		}
		for _, n := range encoded[9:] {
			require.Less(t, n, objects/2, "round %d: of %d objects each list has encoded %v", round, objects, encoded)
		}
	}
}

// beginnings returns the keys at which chunks begin.
func beginnings(elements []*watchcache.Element) (keys []string) {
	for _, p := range cut(elements) {
		keys = append(keys, p.elements[0].Key)
	}
	return keys
}

// Items that are not what the cache has put in are encoded as they are.
func TestChangedItems(t *testing.T) {
	r := newResource(1<<20, 50)
	for range 3 {
		r.list(t, r.elements)
	}
	for name, change := range map[string]func(*metav1.PartialObjectMetadataList){
		"a field":   func(l *metav1.PartialObjectMetadataList) { l.Items[20].Namespace = "other" },
		"a map":     func(l *metav1.PartialObjectMetadataList) { l.Items[20].Labels = map[string]string{"a": "c"} },
		"the order": func(l *metav1.PartialObjectMetadataList) { l.Items[1], l.Items[2] = l.Items[2], l.Items[1] },
		"one less":  func(l *metav1.PartialObjectMetadataList) { l.Items = l.Items[1:] },
		"none":      func(l *metav1.PartialObjectMetadataList) { l.Items = nil },
	} {
		t.Run(name, func(t *testing.T) { r.list(t, r.elements, change) })
	}
	r.list(t, r.elements, func(l *metav1.PartialObjectMetadataList) { l.Continue, l.ResourceVersion = "more", "8" })
}

// A format whose lists are not items next to each other is left to its encoder.
func TestUnexpectedFormats(t *testing.T) {
	for name, spoil := range map[string]func(*metav1.PartialObjectMetadataList, []byte) []byte{
		"a head that depends on the items": func(l *metav1.PartialObjectMetadataList, b []byte) []byte {
			return append(fmt.Appendf(nil, "%d", len(l.Items)), b...)
		},
		"no end": func(_ *metav1.PartialObjectMetadataList, b []byte) []byte { return bytes.TrimRight(b, "]}") },
		"something in between": func(l *metav1.PartialObjectMetadataList, b []byte) []byte {
			if len(l.Items) > 2 {
				return bytes.Replace(b, []byte("},{"), []byte("}, {"), 1)
			}
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			if checkEach && name == "something in between" {
				t.Skip("with invariants this ends the process")
			}
			r := newResource(1<<20, 50)
			r.spoil = spoil
			for range 4 {
				r.list(t, r.elements)
			}
			require.Equal(t, 50, r.list(t, r.elements))
		})
	}
}

// The bytes that are kept stay within the limit, also once it is lower; chunks that
// are not used go, and lists that do not fit are encoded as ever.
func TestBudgetOfLists(t *testing.T) {
	const budget = 100_000
	r := newResource(budget, 100) // about 35,000 bytes
	for range 3 {
		r.list(t, r.elements)
	}
	kept := r.store.Bytes()
	require.Positive(t, kept)
	r.store.SetLimit(kept / 2)
	require.LessOrEqual(t, r.store.Bytes(), kept/2)
	for range 20 {
		r.list(t, r.elements)
		require.LessOrEqual(t, r.store.Bytes(), kept/2)
	}
	require.Positive(t, r.store.Bytes())
	large := newResource(budget, 2000)
	for range 20 {
		large.list(t, large.elements)
		require.LessOrEqual(t, large.store.Bytes(), int64(budget))
	}
	if encoded := large.list(t, large.elements); !checkEach { // with invariants each list is encoded for comparison
		require.Less(t, encoded, 2000+2*batchItems, "a batch, and then the whole by the encoder")
	}

	none := newResource(-1, 100)
	for range 3 {
		require.Equal(t, 100, none.list(t, none.elements))
	}
	require.Zero(t, none.store.Bytes())
}

func TestUnusedChunksGo(t *testing.T) {
	r := newResource(1<<20, 100)
	for range 3 {
		r.list(t, r.elements)
	}
	require.Positive(t, r.store.Bytes())
	for minute := range 20 {
		require.Positive(t, r.store.Bytes())
		r.store.Age(time.Duration(minute+1) * time.Minute)
	}
	require.Zero(t, r.store.Bytes())
	r.list(t, r.elements)
	r.list(t, r.elements)
	require.Positive(t, r.store.Bytes())
	r.store.Clear()
	require.Zero(t, r.store.Bytes())
}

// A list that a caller fills again and again keeps nothing of what it was filled
// with before.
func TestListThatIsFilledAgain(t *testing.T) {
	r := newResource(1<<20, 0)
	list := &metav1.PartialObjectMetadataList{}
	ctx, end := r.listings.Begin(t.Context())
	defer end()
	var earlier []weak.Pointer[watchcache.Element]
	for rv := range 10 {
		elements := make([]*watchcache.Element, minItems)
		for i := range elements {
			elements[i] = element(i, rv)
		}
		earlier = append(earlier, weak.Make(elements[0]))
		r.listings.Note(ctx, list, elements, r.store)
	}
	require.Eventually(t, func() bool {
		runtime.GC()
		return !slices.ContainsFunc(earlier[:9], func(p weak.Pointer[watchcache.Element]) bool { return p.Value() != nil })
	}, time.Minute, time.Millisecond)
	require.NotNil(t, r.listings.find(list))
	require.NotNil(t, earlier[9].Value())
	runtime.KeepAlive(list)
}

// A list that has more than there is room for is not put together in memory: what does not fit
// is encoded as it is written.
func TestListsBeyondTheBudgetAreNotHeld(t *testing.T) {
	if checkEach {
		t.Skip("with invariants each list is encoded for comparison")
	}
	// About 1,050,000 bytes; what fits and a batch are less than what a server compresses.
	r := newResource(50_000, 3000)
	r.list(t, r.elements) // which is compared
	var want bytes.Buffer
	require.NoError(t, r.Encode(listOf(r.elements), &want))
	item := want.Len() / len(r.elements)
	for range 3 * protected {
		ctx, end := r.listings.Begin(t.Context())
		list := listOf(r.elements)
		r.listings.Note(ctx, list, r.elements, r.store)
		r.encoded = 0
		ahead, written := 0, &bytes.Buffer{}
		require.NoError(t, r.encoder.Encode(list, writerFunc(func(p []byte) (int, error) {
			ahead = max(ahead, r.encoded-written.Len()/item)
			return written.Write(p)
		})))
		end()
		require.Equal(t, want.String(), written.String())
		require.LessOrEqual(t, ahead, compressedFrom/item+2*(batchItems+maxChunkItems), "items that were encoded and not written")
		require.LessOrEqual(t, r.encoded, len(r.elements)+1)
	}
	require.Positive(t, r.store.Bytes(), "what fits is kept")
}
