// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-watchcache/watchcache/internal/race"
)

// respond answers with a Table to a client that accepts gzip, and returns what the client
// reads and whether the body was put together here.
func (f *formed) respond(t *testing.T) (body string, compressed bool) {
	form := &Representation{Encoder: metaEncoder(t, mediaTypes[jsonSyntax]), Table: f.registryTable}
	handler := f.listings.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, end := f.listings.Represent(r.Context(), form)
		defer end()
		list := f.newList(f.elements)
		f.listings.Note(ctx, list, f.elements, f.store)
		f.listings.NoteRead(ctx, list)
		assert.NoError(t, f.encoder[jsonSyntax].Encode(list, &header{ResponseWriter: w, to: w}))
		assert.True(t, form.Written())
	}), func(*http.Request) (string, bool) { return "list", true })
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	read := recorder.Body.Bytes()
	if compressed = recorder.Header().Get("Content-Encoding") == "gzip"; compressed {
		var err error
		read, err = tryUnzip(read)
		assert.NoError(t, err)
	}
	return string(read), compressed
}

func (f *formed) expectedTable(t *testing.T) string {
	var want bytes.Buffer
	f.expected(t, jsonSyntax, true, f.newList(f.elements), &want)
	return want.String()
}

// rows returns the rows that are kept, by chunk, and checks that all bytes are counted.
func (f *formed) rows(t *testing.T) map[*chunk]*keptRows {
	t.Helper()
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	all, sum := map[*chunk]*keptRows{}, int64(0)
	for e := f.store.mu.queue.Front(); e != nil; e = e.Next() {
		c := e.Value.(*chunk)
		has := c.content.Load()
		sum += c.size(has)
		if has.rows != nil {
			all[c] = has.rows
		}
	}
	require.Equal(t, sum, f.store.Bytes())
	return all
}

// Rows of a Table are compressed again when a cell or an object has changed, and not otherwise.
func TestCompressedTables(t *testing.T) {
	f := newFormed(130, pod, podList)
	rows := func() map[*chunk]*keptRows {
		t.Helper()
		got, compressed := f.respond(t)
		require.Equal(t, f.expectedTable(t), got)
		require.True(t, compressed)
		return f.rows(t)
	}
	for range 2 {
		got, _ := f.respond(t)
		require.Equal(t, f.expectedTable(t), got)
	}
	before := rows()
	require.Greater(t, len(before), 3)
	again := func() (n int) {
		t.Helper()
		after := rows()
		require.Len(t, after, len(before))
		for c, r := range after {
			if before[c] != r {
				n++
			}
		}
		before = after
		return n
	}
	require.Zero(t, again())
	for _, text := range []any{"other", nil, "", "<&>\u2028", map[string]any{"object": nil}} {
		f.table = ofRow(100, func(row *metav1.TableRow) { row.Cells[1] = text })
		require.Equal(t, 1, again(), "a cell has changed to %v", text)
	}
	f.table = nil
	require.Equal(t, 1, again())
	f.elements[77] = pod(77, 2)
	require.Equal(t, 1, again(), "an object has changed")
	f.now++
	require.Equal(t, len(before), again(), "all cells have changed")
	f.elements = append(append(f.elements[:10:10], f.elements[12:]...), pod(900, 3))
	rows()
	f.store.Clear()
	require.Zero(t, f.store.Bytes())
}

// Cells that change between two conversions of one list are no difference between our Table and
// the server's.
func TestTablesWhileTimePasses(t *testing.T) {
	f := newFormed(130, pod, podList)
	conversions := 0
	f.table = func(table *metav1.Table) error {
		conversions++
		for i := range table.Rows {
			table.Rows[i].Cells[1] = conversions
		}
		return nil
	}
	for range 3 {
		_, _ = f.respond(t)
	}
	_, compressed := f.respond(t)
	require.True(t, compressed)
	require.NotEmpty(t, f.rows(t), "the format was refused")
}

// A Table is right whatever there is room for, while cells and objects change and several
// clients list.
func TestCompressedTablesWithLittleRoom(t *testing.T) {
	clients, lists := 3, 4
	if race.Enabled {
		clients, lists = 2, 2 // each takes five times as long
	}
	for _, room := range []int64{40_000, 240_000} {
		t.Run(fmt.Sprint(room), func(t *testing.T) {
			f := newFormed(60, pod, podList) // of 200 KB
			f.store = newResource(room, 0).store
			for round := range 4 {
				f.now = round / 2
				f.elements[round*17] = pod(round*17, round+2)
				want := f.expectedTable(t)
				var all sync.WaitGroup
				for range clients {
					all.Go(func() {
						for range lists {
							if got, _ := f.respond(t); !assert.Equal(t, want, got) {
								return
							}
						}
					})
				}
				all.Wait()
				f.rows(t)
				require.LessOrEqual(t, f.store.Bytes(), room)
			}
		})
	}
}
