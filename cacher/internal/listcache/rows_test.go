// SPDX-License-Identifier: Apache-2.0

package listcache

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/util/apihelpers"

	"github.com/kube-watchcache/watchcache/internal/race"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// respond answers with a Table of the elements to a client that accepts gzip.
func (f *formed) respond(t testing.TB, elements []*watchcache.Element) *httptest.ResponseRecorder {
	list := f.newList(elements)
	form := &Representation{Serializer: apihelpers.GetMetaInternalVersionCodecs(), Table: f.registryTable}
	handler := f.listings.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, end := f.listings.Represent(r.Context(), form)
		f.listings.Note(ctx, list, elements, f.store)
		f.listings.Read(ctx, list)
		defer end()
		assert.NoError(t, f.encoder[jsonSyntax].Encode(list, &header{ResponseWriter: w, to: w}))
		assert.True(t, form.Written())
	}), func(*http.Request) (bool, bool) { return true, true })
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	return recorder
}

// compressed answers with a Table, compares what the client reads with what the
// server makes of the list, and returns whether the body was put together here.
func (f *formed) compressed(t *testing.T) bool {
	t.Helper()
	recorder := f.respond(t, f.elements)
	var want bytes.Buffer
	f.expected(t, jsonSyntax, true, f.newList(f.elements), &want)
	body := recorder.Body.Bytes()
	own := recorder.Header().Get("Content-Encoding") == "gzip"
	if own {
		body = unzip(t, body)
	}
	require.Equal(t, want.String(), string(body))
	return own
}

// rows returns the rows that are kept, by chunk, and checks that all bytes are counted.
func (f *formed) rows(t *testing.T) map[*chunk]*keptRows {
	t.Helper()
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	all, sum := map[*chunk]*keptRows{}, int64(0)
	for e := f.store.mu.queue.Front(); e != nil; e = e.Next() {
		c := e.Value.(*chunk)
		sum += c.size()
		if r := c.rows.Load(); r != nil {
			all[c] = r
		}
	}
	require.Equal(t, sum, f.store.Bytes())
	return all
}

// differing counts the chunks whose rows were compressed again.
func differing(before, after map[*chunk]*keptRows) (n int) {
	for c, r := range after {
		if before[c] != r {
			n++
		}
	}
	return n
}

// Rows of a Table are compressed again when a cell or an object has changed, and
// not otherwise.
func TestCompressedTables(t *testing.T) {
	if checkEach {
		t.Skip("with invariants each list is encoded for comparison")
	}
	for name, f := range map[string]*formed{
		"typed":        newFormed(300, pod, podList),
		"unstructured": newFormed(800, unstructuredPod, unstructuredList),
	} {
		t.Run(name, func(t *testing.T) {
			require.True(t, f.compressed(t), "the first Table is put together of what is encoded some rows at a time")
			require.Zero(t, f.store.Bytes(), "nothing is kept for a list that nobody has repeated")
			require.True(t, f.compressed(t))
			require.Empty(t, f.rows(t), "rows are kept when they are needed again")
			require.True(t, f.compressed(t))
			before := f.rows(t)
			require.Greater(t, len(before), 10)
			require.True(t, f.compressed(t))
			require.Zero(t, differing(before, f.rows(t)))

			// One cell changes, and back; a cell moves to the neighbor.
			for _, text := range []any{"other", nil, "", "<&>\u2028"} {
				f.table = func(table *metav1.Table) error { table.Rows[150].Cells[1] = text; return nil }
				require.True(t, f.compressed(t))
				require.Equal(t, 1, differing(before, f.rows(t)))
				before = f.rows(t)
			}
			f.table = nil
			require.True(t, f.compressed(t))
			require.Equal(t, 1, differing(before, f.rows(t)))

			// One object changes.
			before = f.rows(t)
			one := pod
			if name == "unstructured" {
				one = unstructuredPod
			}
			f.elements[77] = one(77, 2)
			require.True(t, f.compressed(t))
			require.Equal(t, 1, differing(before, f.rows(t)))
			require.Len(t, f.rows(t), len(before))

			// Every cell changes.
			before = f.rows(t)
			f.now++
			require.True(t, f.compressed(t))
			require.Equal(t, len(before), differing(before, f.rows(t)))

			// An object comes, others go.
			f.elements = append(append(f.elements[:10:10], f.elements[12:]...), one(900, 3))
			require.True(t, f.compressed(t))
			require.True(t, f.compressed(t))

			// Rows that only plain Tables were made of for ten minutes go.
			for minute := range agingPeriods + 2 {
				f.list(t, jsonSyntax, true)
				f.store.Age(time.Duration(minute+1) * time.Minute)
			}
			require.Empty(t, f.rows(t))
			require.Positive(t, f.store.Bytes())
			for minute := range agingPeriods + 2 {
				f.store.Age(time.Duration(minute+20) * time.Minute)
			}
			require.Zero(t, f.store.Bytes())
		})
	}
}

// Rows with other cells are not those that are kept, wherever a cell ends.
func TestRowsHaveTheirCells(t *testing.T) {
	r := &keptRows{cells: []byte("abcd"), ends: []int{1, 4}}
	require.True(t, r.has([]byte("abcd"), []int{11, 14}, 10))
	require.False(t, r.has([]byte("abcd"), []int{12, 14}, 10))
	require.False(t, r.has([]byte("abce"), []int{11, 14}, 10))
	require.False(t, r.has([]byte("abcd"), []int{14}, 10))
	require.False(t, (*keptRows)(nil).has(nil, nil, 0))
}

// A Table is right whatever there is room for, while cells and objects change and
// several clients list.
func TestCompressedTablesWithLittleRoom(t *testing.T) {
	const clients = 3
	lists := 4
	if race.Enabled {
		lists = 2 // each takes five times as long
	}
	for _, room := range []int64{20_000, 100_000, 400_000, 1 << 22} {
		t.Run(fmt.Sprint(room), func(t *testing.T) {
			f := newFormed(150, pod, podList) // of 500 KB
			f.store = newResource(room, 0).store
			for round := range 6 {
				f.now = round / 2
				f.elements[round*17] = pod(round*17, round+2)
				var want bytes.Buffer
				f.expected(t, jsonSyntax, true, f.newList(f.elements), &want)
				var all sync.WaitGroup
				for range clients {
					all.Go(func() {
						for range lists {
							recorder := f.respond(t, f.elements)
							body := recorder.Body.Bytes()
							if recorder.Header().Get("Content-Encoding") == "gzip" {
								var err error
								body, err = tryUnzip(body)
								assert.NoError(t, err)
							}
							if !assert.Equal(t, want.String(), string(body)) {
								return
							}
						}
					})
				}
				all.Wait()
				f.rows(t)
				require.LessOrEqual(t, f.store.Bytes(), room)
			}
			f.store.Clear()
			require.Zero(t, f.store.Bytes())
		})
	}
}
