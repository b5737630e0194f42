// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Of a list for which there is no room what fits is kept, the same part for every
// list, and only the rest is encoded, some items at a time.
func TestListsBeyondTheBudgetAreEncodedInPart(t *testing.T) {
	if checkEach {
		t.Skip("with invariants each list is encoded for comparison")
	}
	const budget, objects = 250_000, 1500 // 525,000 bytes
	r := newResource(budget, objects)
	whole, largest := 0, 0
	r.spoil = func(list *metav1.PartialObjectMetadataList, written []byte) []byte {
		if len(list.Items) == objects {
			whole++
		} else {
			largest = max(largest, len(list.Items))
		}
		return written
	}
	for range 4 {
		r.list(t, r.elements)
	}
	largest = 0
	for round := range protected + 2 {
		whole = 0
		require.Less(t, r.list(t, r.elements), objects*3/4, "in round %d", round)
		require.Equal(t, 1, whole, "for the comparison of this test")
		require.Less(t, largest, batchItems+maxChunkItems)
		require.LessOrEqual(t, r.store.Bytes(), int64(budget))
		require.Greater(t, r.store.Bytes(), int64(budget*3/4))
		at := 50 * round
		r.elements[at] = element(at, round+2)
	}
}

// A client that leaves in the middle ends the list.
func TestRestOfAClientThatHasGone(t *testing.T) {
	if checkEach {
		t.Skip("with invariants each list is encoded for comparison")
	}
	r := newResource(250_000, 1500)
	for range 4 {
		r.list(t, r.elements)
	}
	gone := errors.New("gone")
	left := 300_000
	list := listOf(r.elements)
	ctx, end := r.listings.Begin(t.Context())
	defer end()
	r.listings.Note(ctx, list, r.elements, r.store)
	r.encoded = 0
	require.ErrorIs(t, r.encoder.Encode(list, writerFunc(func(p []byte) (int, error) {
		if left -= len(p); left < 0 {
			return 0, gone
		}
		return len(p), nil
	})), gone)
	require.Less(t, r.encoded, 700, "what follows is not encoded")
	r.list(t, r.elements)
}

// A state that nobody reads plain is kept compressed only, although there is room for
// both; what changes keeps its plain bytes for the next change.
func TestListsThatAreOnlyReadCompressed(t *testing.T) {
	if checkEach {
		t.Skip("with invariants each list is encoded for comparison")
	}
	r := newResource(1<<22, 500) // 180 KB
	most := int64(0)
	for range 4 {
		r.respond(t, directly)
		most = max(most, r.store.Bytes())
	}
	require.Equal(t, 1, r.encoded)
	require.Less(t, most, int64(90_000))
	for range 3 {
		r.elements[100] = element(100, int(r.elements[100].RV)+1)
		r.respond(t, directly)
		require.Equal(t, 2, r.encoded)
	}
	require.Greater(t, r.store.Bytes(), most+200, "the chunk that changes is kept plain as well")
	require.Equal(t, 1, r.list(t, r.elements), "plain lists are made of the compressed form")
	require.Greater(t, r.store.Bytes(), 2*most, "and are kept once they are asked for")
}

// Where plain lists have taken all the room, compressed ones find room for the whole: their
// form takes the place of plain bytes, even of those that are in use.
func TestCompressedFormsTakeThePlaceOfPlainOnes(t *testing.T) {
	if checkEach {
		t.Skip("with invariants each list is encoded for comparison")
	}
	const budget = 200_000
	r := newResource(budget, 900) // 310 KB
	for range 4 {
		r.list(t, r.elements)
	}
	require.Greater(t, r.store.Bytes(), int64(budget*3/4))
	for range 6 {
		r.respond(t, directly)
		require.LessOrEqual(t, r.store.Bytes(), int64(budget))
		r.list(t, r.elements)
		require.LessOrEqual(t, r.store.Bytes(), int64(budget))
	}
	for range protected + 2 {
		r.respond(t, directly)
		require.Equal(t, 1, r.encoded)
		require.Equal(t, 1, r.list(t, r.elements))
		require.LessOrEqual(t, r.store.Bytes(), int64(budget))
	}
}
