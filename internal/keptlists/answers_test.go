// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	endpoints "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// A list has lost its items once its first byte is written, before anything is kept and after,
// so that a client who does not read holds none of them.
func TestUnreadListsHoldNoItems(t *testing.T) {
	writes := func(t *testing.T, list apiruntime.Object, w http.ResponseWriter) http.ResponseWriter {
		return &header{ResponseWriter: w, to: writerFunc(func(p []byte) (int, error) {
			items, ok := itemsOf(list)
			require.True(t, ok)
			require.Zero(t, items.Len(), "items that an answer holds")
			return w.Write(p)
		})}
	}
	serve := func(t *testing.T, l *Encoder, compressed bool, answer http.HandlerFunc) {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		l.Serve(answer, asking("list", compressed)).ServeHTTP(httptest.NewRecorder(), request)
	}
	for _, compressed := range []bool{false, true} {
		r := newResource(1<<22, 500)
		f := newFormed(500, pod, podList)
		for range 4 {
			serve(t, &r.listings, compressed, func(w http.ResponseWriter, request *http.Request) {
				list := listOf(r.elements)
				r.listings.Note(request.Context(), list, r.elements, r.store)
				require.NoError(t, r.encoder.Encode(list, writes(t, list, w)))
			})
			for _, asTable := range []bool{false, true} {
				serve(t, &f.listings, compressed, func(w http.ResponseWriter, request *http.Request) {
					form := &Representation{Encoder: metaEncoder(t, mediaTypes[jsonSyntax])}
					if asTable {
						form.Table = f.registryTable
					}
					ctx, end := f.listings.Represent(request.Context(), form)
					defer end()
					list := podList(f.elements)
					f.listings.Note(ctx, list, f.elements, f.store)
					require.NoError(t, f.encoder[jsonSyntax].Encode(list, writes(t, list, w)))
					require.True(t, form.Written())
				})
			}
		}
	}
}

// counting is an encoder that many lists use at once. The first call of each list blocks until
// every list has looked up the kept chunks.
type counting struct {
	*resource
	lists        int64
	calls, items atomic.Int64
	all          sync.WaitGroup
}

func (c *counting) Encode(object apiruntime.Object, w io.Writer) error {
	if c.calls.Add(1) <= c.lists {
		c.all.Done()
		c.all.Wait()
	}
	items, _ := itemsOf(object)
	c.items.Add(int64(items.Len()))
	return jsonEncoder{}.Encode(object, w)
}

// Lists that come together before anything is kept are encoded once: the first one for itself,
// because nobody has repeated it, one for all others, and one is compared.
func TestListsThatComeTogether(t *testing.T) {
	if checkEach {
		t.Skip("with invariants each list is encoded for comparison")
	}
	const clients, objects = 40, 500
	r := newResource(1<<22, objects)
	c := &counting{resource: r, lists: clients}
	c.all.Add(clients)
	r.encoder.Encoder = c
	var want bytes.Buffer
	require.NoError(t, jsonEncoder{}.Encode(listOf(r.elements), &want))
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			list := listOf(r.elements)
			ctx, end := r.listings.Begin(t.Context())
			defer end()
			r.listings.Note(ctx, list, r.elements, r.store)
			var got bytes.Buffer
			assert.NoError(t, r.encoder.Encode(list, &got))
			assert.Equal(t, want.String(), got.String())
		})
	}
	all.Wait()
	require.LessOrEqual(t, c.items.Load(), int64(4*objects+clients), "items that were encoded")
}

// Lists that the server encodes as a whole are bounded: by user, and in all, and no longer than
// their requests last.
func TestAnswersAreBounded(t *testing.T) {
	const room = 32 << 20 // of which eight times are the bound
	r := newResource(room, 0)
	object := func(mebibytes int64) []*watchcache.Element {
		return []*watchcache.Element{{Size: mebibytes << 20 / 4}}
	}
	whole := true
	type bodyKey struct{}
	handler := r.listings.Bound(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		request.Context().Value(bodyKey{}).(func(context.Context))(request.Context())
	}), func(*http.Request) bool { return whole })
	// admit runs then while an answer is under way, and returns whether it was admitted.
	admit := func(name string, mebibytes int64, then func()) (admitted bool) {
		ctx := context.WithValue(t.Context(), bodyKey{}, func(ctx context.Context) {
			admitted = r.listings.Admit(ctx, object(mebibytes), r.store)
			if then != nil {
				then()
			}
		})
		ctx = endpoints.WithUser(ctx, &user.DefaultInfo{Name: name})
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
		return admitted
	}
	for range 2 { // as much again once the requests are over
		require.True(t, admit("a", 100, func() {
			require.False(t, admit("a", 30, nil), "beyond half of the bound for one user")
			require.True(t, admit("a", 20, nil))
			require.True(t, admit("b", 1000, func() {
				require.False(t, admit("c", 10, nil), "beyond the bound")
				require.True(t, admit("c", 1, nil), "a small answer of a user who holds nothing")
				require.False(t, admit("b", 1, nil))
				require.True(t, admit("c", 0, nil))
				whole = false
				require.True(t, admit("c", 1000, nil), "one that is not encoded as a whole")
				whole = true
			}), "the first answer of a user has any size")
			require.True(t, admit("c", 100, nil))
		}))
		require.Zero(t, r.listings.answers.mu.held)
		require.Empty(t, r.listings.answers.mu.users)
	}
	require.True(t, r.listings.Admit(t.Context(), object(1000), r.store), "not within Bound")

	small, large := r.store, newResource(8*room, 0).store
	r.store = large
	require.True(t, admit("a", 300, func() {
		r.store = small
		require.True(t, admit("b", 50, nil), "the bound is that of the server, and not of one cache")
	}))
}
