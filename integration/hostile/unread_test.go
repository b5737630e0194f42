// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bufio"
	"context"
	"encoding/base64"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

var (
	unreaders = flag.Int("unread", 60, "how many clients of TestUnread send a request and do not read the answer")
	onlyForm  = flag.String("form", "", "the only form of answers in TestUnread; empty: all")
)

// unreadDevices are of 5 KB, so that a list has 28 MiB.
const unreadDevices = 6000

// unreadForms are the forms of answers. whole: the server encodes the whole before it writes, so
// that it has to refuse; metadata in protobuf only as far as it is not kept.
var unreadForms = []struct {
	name, query, accept string
	gzip, whole         bool
}{
	{"json", "resourceVersion=0", asJSON, false, false},
	{"latest", "", asJSON, false, false},
	{"gzip", "resourceVersion=0", asJSON, true, false},
	{"table", "resourceVersion=0", asTable, false, false},
	{"table-gzip", "resourceVersion=0", asTable, true, false},
	{"metadata", "resourceVersion=0", asMetadata, false, false},
	{"protobuf", "resourceVersion=0", asProtobuf, false, false},
	{"label", "labelSelector=lane+notin+(9)", asJSON, false, false},
	{"page", "limit=3000", asJSON, false, false},
	{"watch-list", streams, asJSON, false, false},
	{"yaml", "resourceVersion=0", "application/yaml", false, true},
	{"indented", "resourceVersion=0&pretty=true", asJSON, false, true},
	{"table-objects", "resourceVersion=0&includeObject=Object", asTable, false, true},
}

// TestUnread: clients that ask for a long list and do not read it hold little of the server's
// memory, whatever they ask for, before anything is kept and after, or are told to come again;
// and the list of another user gets through.
func TestUnread(t *testing.T) {
	f := newFixture(t)
	var puts errgroup.Group
	puts.SetLimit(8)
	for i := range unreadDevices {
		puts.Go(func() error {
			padding := make([]byte, 3400) // which can't be compressed
			_, _ = rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)}).Read(padding)
			return f.putPadded(t.Context(), ours, fmt.Sprintf("device-%05d", i), i, base64.StdEncoding.EncodeToString(padding))
		})
	}
	require.NoError(t, puts.Wait())
	for _, form := range unreadForms {
		if *onlyForm != "" && *onlyForm != form.name {
			continue
		}
		states := []string{"cold", "warm"}
		if form.whole { // nothing is kept
			states = states[:1]
		}
		for _, state := range states {
			t.Run(form.name+"/"+state, func(t *testing.T) {
				mark := ""
				if form.name == "watch-list" {
					mark = endMark
				}
				another := f.client(t, reader, true)
				list := func() time.Duration {
					begin := time.Now()
					a, err := f.ask(t.Context(), another, everyNS+"?"+form.query, form.accept, form.gzip, mark)
					require.NoError(t, err)
					require.Equal(t, http.StatusOK, a.status, a.body)
					return time.Since(begin)
				}
				alone := time.Duration(0)
				for range 3 {
					if state == "warm" {
						alone = list()
					}
				}
				idle := f.heap(t, another)
				ctx, readers := background(t)
				defer readers.stop()
				served, refused := f.unread(ctx, t, form.query, form.accept, form.gzip)
				require.Equal(t, *unreaders, served+refused)
				require.Positive(t, served)
				most := int64(150+(*unreaders-60)*350/340) << 20
				if form.whole {
					require.Positive(t, refused)
					most = 512 << 20
				} else if form.name != "protobuf" {
					require.Zero(t, refused)
				}
				held := f.heap(t, another) - idle
				assert.Less(t, held, most, "bytes beyond the idle server")
				took := list()
				fmt.Printf("%s, %s: %d clients do not read %d lists and are refused %d; %d MiB beyond the idle server; another client's list takes %v (alone %v)\n",
					form.name, state, *unreaders, served, refused, held>>20, took.Round(time.Millisecond), alone.Round(time.Millisecond))
			})
		}
	}
}

// unread has clients, each on a connection of its own, send a request of which they read the
// header only, until ctx ends. It returns how many are answered, and how many are told to come
// again, once all of them are.
func (f *fixture) unread(ctx context.Context, t *testing.T, query, accept string, compressed bool) (served, refused int) {
	t.Helper()
	var all sync.WaitGroup
	statuses := make([]int, *unreaders)
	for i := range statuses {
		client := f.client(t, alice, true)
		// The server may send no more than this before the client reads.
		client.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerConnection: 64 << 10, MaxReceiveBufferPerStream: 64 << 10}
		all.Go(func() {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.Config.Host+everyNS+"?"+query, nil)
			if !assert.NoError(t, err) {
				return
			}
			request.Header.Set("Accept", accept)
			if compressed {
				request.Header.Set("Accept-Encoding", "gzip")
			}
			response, err := client.Do(request) // whose body ends with ctx
			if !assert.NoError(t, err) {
				return
			}
			if statuses[i] = response.StatusCode; statuses[i] == http.StatusTooManyRequests {
				assert.NotEmpty(t, response.Header.Get("Retry-After"))
			}
		})
	}
	all.Wait()
	for _, status := range statuses {
		switch status {
		case http.StatusOK:
			served++
		case http.StatusTooManyRequests:
			refused++
		}
	}
	return served, refused
}

// heap returns how many bytes the server's objects take after a collection.
func (f *fixture) heap(t *testing.T, client *http.Client) (bytes int64) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.Config.Host+"/debug/pprof/heap?gc=1&debug=1", nil)
	require.NoError(t, err)
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "# HeapAlloc = "); ok {
			bytes, err = strconv.ParseInt(text, 10, 64)
			require.NoError(t, err)
		}
	}
	require.NoError(t, lines.Err())
	require.Positive(t, bytes)
	return bytes
}
