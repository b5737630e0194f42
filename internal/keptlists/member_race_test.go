// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	apiruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// jsonEncoder is a server's own encoder without a state.
type jsonEncoder struct{}

func (jsonEncoder) Identifier() apiruntime.Identifier { return "json" }

func (jsonEncoder) Encode(object apiruntime.Object, w io.Writer) error {
	return json.NewEncoder(w).Encode(object)
}

// Clients that list plain and compressed read the right bytes while objects
// change, while room is taken away and given back, and while chunks and forms age.
func TestCompressedListsWhileEverythingChanges(t *testing.T) {
	r := newResource(150_000, 500) // of 180 KB
	r.encoder.Encoder = jsonEncoder{}
	var elements atomic.Pointer[[]*watchcache.Element]
	elements.Store(&r.elements)
	stop := make(chan struct{})
	var others, clients sync.WaitGroup
	others.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			changed := slices.Clone(*elements.Load())
			changed[i*37%len(changed)] = element(i*37%len(changed), i+1)
			elements.Store(&changed)
			if i%5 == 0 {
				r.store.Age(time.Duration(i) * time.Minute)
			}
			if i%7 == 0 {
				r.store.SetLimit(90_000)
				r.store.SetLimit(150_000)
			}
			if i%50 == 0 {
				r.store.Clear()
			}
		}
	})
	for client := range 4 {
		clients.Go(func() {
			for range 30 {
				listed := *elements.Load()
				list := listOf(listed)
				handler := r.listings.Serve(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
					r.listings.Note(request.Context(), list, listed, r.store)
					assert.NoError(t, r.encoder.Encode(list, &header{ResponseWriter: w, to: w}))
				}), asking("list", client%2 == 0))
				recorder := httptest.NewRecorder()
				handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
				var want bytes.Buffer
				assert.NoError(t, jsonEncoder{}.Encode(listOf(listed), &want))
				body := recorder.Body.Bytes()
				if recorder.Header().Get("Content-Encoding") == "gzip" {
					var err error
					body, err = tryUnzip(body)
					assert.NoError(t, err)
				}
				if !assert.Equal(t, want.String(), string(body)) {
					return
				}
				assert.LessOrEqual(t, r.store.Bytes(), int64(150_000))
			}
		})
	}
	clients.Wait()
	close(stop)
	others.Wait()
	r.store.Clear()
	assert.Zero(t, r.store.Bytes())
}
