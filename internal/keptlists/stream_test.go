// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// eventOf is the event of an element in the format of these tests.
func eventOf(e *watchcache.Element) []byte {
	return fmt.Appendf(nil, "{%q:%d,%q}\n", e.Key, e.RV, strings.Repeat(e.Key, 50))
}

func encodeEvent(e *watchcache.Element, w io.Writer) error {
	_, err := w.Write(eventOf(e))
	return err
}

// served runs the handler of a watch behind Stream, and returns what the client reads:
// one whole member of gzip if it is compressed.
func served(t testing.TB, l *Encoder, compressed bool, handler func(ctx context.Context, w http.ResponseWriter)) []byte {
	t.Helper()
	l.on.Store(true)
	recorder := httptest.NewRecorder()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	l.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		handler(r.Context(), w)
	}), asking("watch", compressed)).ServeHTTP(recorder, request)
	body := recorder.Body.Bytes()
	if !compressed {
		return body
	}
	assert.Equal(t, "gzip", recorder.Header().Get("Content-Encoding"))
	from := bytes.NewReader(body)
	r, err := gzip.NewReader(from)
	if !assert.NoError(t, err) {
		return nil
	}
	r.Multistream(false)
	read, err := io.ReadAll(r)
	assert.NoError(t, err)
	assert.Zero(t, from.Len(), "one member, and nothing after it")
	return read
}

// framing writes as the framers of JSON and of protobuf do.
type framing struct {
	to      io.Writer
	lengths bool
}

func (f *framing) Write(p []byte) (int, error) {
	if f.lengths {
		if _, err := f.to.Write(binary.BigEndian.AppendUint32(nil, uint32(len(p)))); err != nil {
			return 0, err
		}
	}
	return f.to.Write(p)
}

// runsOf divides the initial events of a watch.
func runsOf(i *Initial, elements []*watchcache.Element) (runs []cacher.EventRun) {
	for _, e := range elements {
		if r := i.Add(e); r != nil {
			runs = append(runs, r)
		}
	}
	if r := i.End(); r != nil {
		runs = append(runs, r)
	}
	return runs
}

// A client reads what was written to its watch, with whatever flushed, and with or without
// room to keep it; where initial events are not shared, with whatever left out and in between.
func TestStreams(t *testing.T) {
	for round := range uint64(40) {
		t.Run(fmt.Sprint(round), func(t *testing.T) { requireStreams(t, rand.New(rand.NewPCG(round, 1))) })
	}
}

// requireStreams opens some watches of a resource that changes, and compares what
// their clients read with what was written.
func requireStreams(t *testing.T, random *rand.Rand) {
	t.Helper()
	l := &Encoder{}
	store := storeOf(l, []int64{-1, 1, 50_000, 1 << 20}[random.IntN(4)])
	var elements []*watchcache.Element
	for i := range random.IntN(150) {
		elements = append(elements, element(i, 1))
	}
	var live [][]byte
	for i := range 20 {
		live = append(live, []byte(strings.Repeat(fmt.Sprint("live", i), random.IntN(100))))
	}
	for watch := range 6 {
		if random.IntN(3) == 0 && len(elements) > 0 {
			at := random.IntN(len(elements))
			elements[at] = element(at, watch+2)
		}
		lengths, compressed := random.IntN(2) == 0, random.IntN(3) > 0
		var want bytes.Buffer
		toWant := &framing{&want, lengths}
		got := served(t, l, compressed, func(ctx context.Context, w http.ResponseWriter) {
			shared := random.IntN(4) > 0
			if shared {
				ctx = ShareInitialEvents(ctx)
			}
			initial := store.initial(ctx)
			out := &framing{w, lengths}
			flush := func() {
				if random.IntN(4) == 0 {
					w.(http.Flusher).Flush()
				}
			}
			id := []string{"json", "protobuf"}[random.IntN(2)]
			leavesOut := !shared && random.IntN(3) == 0
			for _, run := range runsOf(initial, elements) {
				for at, e := range run.Elements() {
					if leavesOut && random.IntN(20) == 0 {
						continue
					}
					_, ok, err := run.Write(at, id, encodeEvent, out)
					require.NoError(t, err)
					if !ok {
						require.NoError(t, encodeEvent(e, out))
					}
					require.NoError(t, encodeEvent(e, toWant))
					flush()
					if last := at == len(run.Elements())-1; (last || !shared) && random.IntN(20) == 0 {
						_, err := out.Write([]byte("between\n"))
						require.NoError(t, err)
						_, _ = toWant.Write([]byte("between\n"))
					}
				}
			}
			for range random.IntN(40) {
				p := live[random.IntN(len(live))]
				if random.IntN(2) == 0 {
					l.events.Keep(p, func(int64) {})
				}
				_, err := out.Write(p)
				require.NoError(t, err)
				_, _ = toWant.Write(p)
				flush()
			}
		})
		require.Equal(t, want.String(), string(got), "watch %d, compressed %v, lengths %v", watch, compressed, lengths)
		require.LessOrEqual(t, store.Bytes(), max(0, store.limit.Load()))
	}
}

// An event is compressed once, whatever the number of watches that are sent it.
func TestEventsAreCompressedOnce(t *testing.T) {
	l := &Encoder{}
	const watchers, n = 100, 20
	served(t, l, true, func(context.Context, http.ResponseWriter) {}) // so that there is a compressed watch
	var kept [n]atomic.Int64
	var compressions [n]atomic.Int64
	var events [n]*Event
	var want bytes.Buffer
	for i := range n {
		p := []byte(strings.Repeat(fmt.Sprint("event ", i), 500))
		want.Write(p)
		events[i] = l.events.Keep(p, func(bytes int64) {
			kept[i].Add(bytes)
			if bytes > 0 {
				compressions[i].Add(1)
			}
		})
		require.NotNil(t, events[i])
	}
	var all sync.WaitGroup
	for range watchers {
		all.Go(func() {
			got := served(t, l, true, func(_ context.Context, w http.ResponseWriter) {
				for _, event := range events {
					_, err := w.Write(event.plain)
					assert.NoError(t, err)
					w.(http.Flusher).Flush()
				}
			})
			assert.Equal(t, want.String(), string(got))
		})
	}
	all.Wait()
	for i := range n {
		require.EqualValues(t, 1, compressions[i].Load(), "compressions of an event for %d watchers", watchers)
		require.Equal(t, events[i].mu.deflated.size(), kept[i].Load())
		events[i].Drop()
		require.Zero(t, kept[i].Load())
		require.Nil(t, l.events.find(events[i].plain))
	}
}

// The events of a run are compressed once, and what stands for them is never read.
func TestRunsAreCompressedOnce(t *testing.T) {
	l := &Encoder{}
	store := storeOf(l, 1<<20)
	var elements []*watchcache.Element
	var want bytes.Buffer
	for i := range 200 {
		elements = append(elements, element(i, 1))
		want.Write(eventOf(elements[i]))
	}
	var encodings atomic.Int64
	watch := func() string {
		return string(served(t, l, true, func(ctx context.Context, w http.ResponseWriter) {
			initial := store.initial(ShareInitialEvents(ctx))
			for _, run := range runsOf(initial, elements) {
				for at, e := range run.Elements() {
					_, ok, err := run.Write(at, "json", func(e *watchcache.Element, w io.Writer) error {
						encodings.Add(1)
						return encodeEvent(e, w)
					}, w)
					assert.NoError(t, err)
					if !ok {
						assert.NoError(t, encodeEvent(e, w))
					}
				}
			}
		}))
	}
	require.Equal(t, want.String(), watch())
	first := encodings.Load()
	kept := map[*chunk]*deflated{}
	for _, variants := range store.mu.chunks {
		kept[variants[0]] = variants[0].content.Load().deflated
		require.NotNil(t, variants[0].content.Load().deflated)
	}
	require.NotEmpty(t, kept)
	var watchers sync.WaitGroup
	for range 20 {
		watchers.Go(func() { assert.Equal(t, want.String(), watch()) })
	}
	watchers.Wait()
	require.Equal(t, first, encodings.Load())
	for c, d := range kept {
		require.Same(t, d, c.content.Load().deflated)
	}
}

// failingResponse fails after some writes.
type failingResponse struct {
	http.ResponseWriter
	left int
}

var errClient = errors.New("the client is gone")

func (f *failingResponse) Write(p []byte) (int, error) {
	if f.left--; f.left < 0 {
		return 0, errClient
	}
	return f.ResponseWriter.Write(p)
}

// A watch whose client is gone is told so, and holds nothing up.
func TestStreamOfAClientThatIsGone(t *testing.T) {
	for left := range 4 {
		for _, compressed := range []bool{false, true} {
			l := &Encoder{}
			l.on.Store(true)
			store := storeOf(l, 1<<20)
			var elements []*watchcache.Element
			for i := range 300 {
				elements = append(elements, element(i, 1))
			}
			failed := false
			l.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusOK)
				initial := store.initial(ShareInitialEvents(r.Context()))
				for _, run := range runsOf(initial, elements) {
					for at, e := range run.Elements() {
						_, ok, err := run.Write(at, "json", encodeEvent, w)
						if !ok {
							err = encodeEvent(e, w)
						}
						if err != nil {
							require.ErrorIs(t, err, errClient)
							failed = true
							return
						}
						w.(http.Flusher).Flush()
					}
				}
			}), asking("watch", compressed)).
				ServeHTTP(&failingResponse{httptest.NewRecorder(), left}, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
			require.True(t, failed, "%d writes", left)
		}
	}
}

// A run's events are sent with its first one: what comes in between follows them, and a
// reader that leaves one out has its watch ended.
func TestRunsThatAreNotWrittenInOrder(t *testing.T) {
	l := &Encoder{}
	store := storeOf(l, 1<<20)
	var elements []*watchcache.Element
	for i := range maxChunkItems {
		elements = append(elements, element(i, 1))
	}
	for _, leavesOut := range []bool{false, true} {
		var want bytes.Buffer
		got := served(t, l, true, func(ctx context.Context, w http.ResponseWriter) {
			var run cacher.EventRun
			for _, r := range runsOf(store.initial(ShareInitialEvents(ctx)), elements) {
				if run = r; len(run.Elements()) >= minItems {
					break
				}
			}
			require.GreaterOrEqual(t, len(run.Elements()), minItems)
			for at, e := range run.Elements() {
				want.Write(eventOf(e))
				if leavesOut && at == 1 {
					continue
				}
				_, ok, err := run.Write(at, "json", encodeEvent, w)
				require.True(t, ok)
				if leavesOut && at > 1 {
					require.ErrorIs(t, err, errOrder)
					continue
				}
				require.NoError(t, err)
				if at == 1 {
					_, err := w.Write([]byte("between\n"))
					require.NoError(t, err)
				}
			}
		})
		if !leavesOut {
			want.WriteString("between\n")
		}
		require.Equal(t, want.String(), string(got))
	}
}
