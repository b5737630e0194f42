// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"bytes"
	"compress/gzip"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
)

// A checksum of two runs of bytes is that of hash/crc32 over both.
func TestAppendedChecksum(t *testing.T) {
	random := rand.NewChaCha8([32]byte{1})
	lengths := []int{0, 1, 2, 3, 7, 8, 9, 255, 256, 257, 4095, 65535, 65536, 1 << 20}
	for _, before := range lengths {
		for _, after := range lengths {
			both := make([]byte, before+after)
			_, _ = random.Read(both)
			a, b := crc32.ChecksumIEEE(both[:before]), crc32.ChecksumIEEE(both[before:])
			require.Equal(t, crc32.ChecksumIEEE(both), appendedChecksum(a, b, byteShift(after)), "%d and %d bytes", before, after)
		}
	}
	// A long shift is that of its parts.
	require.Equal(t, product(byteShift(1<<40), byteShift(12345)), byteShift(1<<40+12345))
}

// unzip reads one member, and fails if anything follows it.
func unzip(t testing.TB, member []byte) []byte {
	t.Helper()
	read, err := tryUnzip(member)
	require.NoError(t, err)
	return read
}

func tryUnzip(member []byte) ([]byte, error) {
	from := bytes.NewReader(member)
	r, err := gzip.NewReader(from)
	if err != nil {
		return nil, err
	}
	r.Multistream(false)
	read, err := io.ReadAll(r)
	if err == nil && from.Len() > 0 {
		err = errors.New("bytes follow the member")
	}
	return read, err
}

// FuzzMember puts members together of arbitrary pieces, whatever the frame, with and
// without separators, and reads them.
func FuzzMember(f *testing.F) {
	f.Add([]byte(`{"items":[`), true, []byte(`]}`), []byte("abcabcabcabcabc"), uint64(3))
	f.Add([]byte("k8s\x00"), false, []byte{}, []byte{0, 1, 2}, uint64(1))
	f.Add([]byte{}, false, []byte("\n"), bytes.Repeat([]byte("x"), 70_000), uint64(5))
	f.Fuzz(func(t *testing.T, head []byte, separated bool, tail, text []byte, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 2))
		made := &format{syntax: eventSyntax}
		if separated {
			made.syntax = jsonSyntax
		}
		separator := made.syntax.separator()
		a := &assembly{format: made, frame: &frame{syntax: made.syntax, head: head, tail: tail}}
		a.store = storeOf(&Encoder{}, 1<<20)
		for range 1 + random.IntN(6) {
			c := emptyChunk(place{format: made}, make([]identity, 1))
			item := []byte{}
			for range random.IntN(4) {
				if len(text) > 0 {
					from := random.IntN(len(text))
					item = append(item, text[from:from+random.IntN(len(text)-from+1)]...)
				}
			}
			item = append(item, separator...)
			c.ends[0] = len(item)
			c.content.Store(&content{plain: item})
			if random.IntN(2) == 0 {
				d := deflate(item[:len(item)-len(separator)])
				again, err := d.inflate(0)
				require.NoError(t, err)
				require.Equal(t, string(item[:len(item)-len(separator)]), string(again))
				c.content.Store(&content{deflated: d})
			}
			a.parts = append(a.parts, part{chunk: c, keep: true})
		}
		var want, blocks bytes.Buffer
		require.NoError(t, a.writePlain(&want))
		begin := a.beginning()
		require.NoError(t, a.writeMember(&blocks, begin))
		member := appendStored(append([]byte{}, gzipHeader[:]...), begin, false)
		require.Equal(t, want.String(), string(unzip(t, append(member, blocks.Bytes()...))))
	})
}

// respond writes a list as a server does that compresses nothing of itself, to a
// client that accepts gzip, and returns the body.
func (r *resource) respond(t *testing.T, between func(http.ResponseWriter) io.Writer) *httptest.ResponseRecorder {
	t.Helper()
	list := listOf(r.elements)
	handler := r.listings.Serve(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		r.listings.Note(request.Context(), list, r.elements, r.store)
		r.encoded = 0
		require.NoError(t, r.encoder.Encode(list, &header{ResponseWriter: w, to: between(w)}))
	}), asking("list", true))
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	var want bytes.Buffer
	encoded := r.encoded
	require.NoError(t, r.Encode(listOf(r.elements), &want))
	r.encoded = encoded
	body := recorder.Body.Bytes()
	require.Equal(t, bytes.HasPrefix(body, gzipHeader[:]), recorder.Header().Get("Content-Encoding") == "gzip")
	if recorder.Header().Get("Content-Encoding") == "gzip" {
		require.Equal(t, "Accept-Encoding", recorder.Header().Get("Vary"))
		body = unzip(t, body)
	}
	require.Equal(t, want.String(), string(body))
	return recorder
}

// asking is a request with a verb.
func asking(verb string, compressed bool) func(*http.Request) (string, bool) {
	return func(*http.Request) (string, bool) { return verb, compressed }
}

// header writes the header before the first bytes.
type header struct {
	http.ResponseWriter
	to    io.Writer
	wrote bool
}

func (h *header) Write(p []byte) (int, error) {
	if !h.wrote {
		h.wrote = true
		h.WriteHeader(http.StatusOK)
	}
	return h.to.Write(p)
}

func directly(w http.ResponseWriter) io.Writer { return w }

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// The client reads the list whatever stands between an encoder and the response: a
// writer that copies, splits or buffers its input just makes the list plain.
func TestWritersInBetween(t *testing.T) {
	for name, c := range map[string]struct {
		between    func(http.ResponseWriter) io.Writer
		compressed bool
	}{
		"nothing": {directly, true},
		"one that copies": {func(w http.ResponseWriter) io.Writer {
			return writerFunc(func(p []byte) (int, error) { return w.Write(bytes.Clone(p)) })
		}, true},
		"one that splits": {func(w http.ResponseWriter) io.Writer {
			return writerFunc(func(p []byte) (int, error) {
				for i := range p {
					if n, err := w.Write(p[i : i+1]); err != nil {
						return i + n, err
					}
				}
				return len(p), nil
			})
		}, false},
		"one that flushes the header": {func(w http.ResponseWriter) io.Writer {
			return writerFunc(func(p []byte) (int, error) {
				w.(http.Flusher).Flush()
				return w.Write(p)
			})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newResource(1<<22, 500)
			for round := range 5 {
				recorder := r.respond(t, c.between)
				require.Equal(t, c.compressed, recorder.Header().Get("Content-Encoding") == "gzip", "in round %d", round)
			}
		})
	}
}

// A list that was filled for one request and is written to another response is
// right there, too.
func TestListOfAnotherRequest(t *testing.T) {
	r := newResource(1<<22, 500)
	for range 3 {
		r.respond(t, directly)
	}
	list := listOf(r.elements)
	var want, log bytes.Buffer
	require.NoError(t, r.Encode(list, &want))
	accepts := asking("list", true)
	ctx := audit.WithAuditContext(t.Context())
	require.NoError(t, audit.AuditContextFrom(ctx).Init(audit.RequestAuditConfig{Level: auditinternal.LevelRequestResponse}, nil))
	request := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	r.listings.Serve(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		r.listings.Note(request.Context(), list, r.elements, r.store)
		require.NoError(t, r.encoder.Encode(list, &log), "an audit log, say")
	}), accepts).ServeHTTP(httptest.NewRecorder(), request)
	require.Equal(t, want.String(), log.String())
	recorder := httptest.NewRecorder()
	r.listings.Serve(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		r.listings.Note(request.Context(), list, r.elements, r.store)
		require.NoError(t, r.encoder.Encode(list, &log))
		require.NoError(t, r.encoder.Encode(list, &header{ResponseWriter: w, to: w}))
	}), accepts).ServeHTTP(recorder, request)
	require.Equal(t, want.String(), string(unzip(t, recorder.Body.Bytes())), "after it was logged")
	recorder = httptest.NewRecorder()
	r.listings.Serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		require.NoError(t, r.encoder.Encode(list, &header{ResponseWriter: w, to: w}))
	}), accepts).ServeHTTP(recorder, request)
	require.Empty(t, recorder.Header().Get("Content-Encoding"))
	require.Equal(t, want.String(), recorder.Body.String())
}

// A client that has gone is an error, and leaves nothing behind.
func TestCompressedListOfAClientThatHasGone(t *testing.T) {
	r := newResource(1<<22, 500)
	gone := errors.New("gone")
	for after := range 4 {
		list := listOf(r.elements)
		r.listings.Serve(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
			r.listings.Note(request.Context(), list, r.elements, r.store)
			writes := 0
			err := r.encoder.Encode(list, &header{ResponseWriter: w, to: writerFunc(func(p []byte) (int, error) {
				if writes++; writes > after {
					return 0, gone
				}
				return w.Write(p)
			})})
			if after == 0 || writes > after {
				require.ErrorIs(t, err, gone)
			}
		}), asking("list", true)).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	}
	for range 3 {
		r.respond(t, directly)
	}
	require.Equal(t, "gzip", r.respond(t, directly).Header().Get("Content-Encoding"))
}

// Where there is no room for plain bytes, compressed ones are kept without them,
// and serve plain lists too.
func TestPlainBytesAreGivenUp(t *testing.T) {
	if checkEach {
		t.Skip("with invariants each list is encoded for comparison")
	}
	// With some divisions, one in fifty, the compressed form takes more than 60 KB.
	const budget = 80_000
	r := newResource(budget, 500) // 180 KB
	for range 3 * protected {
		r.respond(t, directly)
		require.LessOrEqual(t, r.store.Bytes(), int64(budget))
	}
	for range 3 {
		require.Equal(t, "gzip", r.respond(t, directly).Header().Get("Content-Encoding"))
		require.Equal(t, 1, r.list(t, r.elements), "plain lists are made of the compressed form")
		r.elements[100] = element(100, int(r.elements[100].RV)+1)
		r.respond(t, directly)
		require.LessOrEqual(t, r.store.Bytes(), int64(budget))
	}
	r.store.Clear()
	require.Zero(t, r.store.Bytes())
	require.Zero(t, r.store.mu.queue.Len())
}

// A comparison finds every difference, wherever writes begin and end.
func TestComparison(t *testing.T) {
	for name, c := range map[string]struct {
		want, got []string
		same      bool
	}{
		"the same":                  {[]string{"ab", "", "cde"}, []string{"ab", "cde"}, true},
		"cut otherwise":             {[]string{"ab", "cde"}, []string{"a", "bcd", "", "e"}, true},
		"nothing":                   {nil, nil, true},
		"a byte":                    {[]string{"ab", "cde"}, []string{"ab", "cdf"}, false},
		"too little":                {[]string{"ab", "cde"}, []string{"ab", "cd"}, false},
		"too much":                  {[]string{"ab", "cde"}, []string{"ab", "cde", "f"}, false},
		"something and not nothing": {nil, []string{"a"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if checkEach && !c.same {
				t.Skip("with invariants this ends the process")
			}
			writing := func(pieces []string) encodeTo {
				return func(w io.Writer) error {
					for _, p := range pieces {
						if _, err := io.WriteString(w, p); err != nil {
							return err
						}
					}
					return nil
				}
			}
			f := &format{}
			require.Equal(t, c.same, f.prove(writing(c.want), writing(c.got)))
			require.Equal(t, c.same, f.proven.Load())
			require.Equal(t, !c.same, f.refused.Load())
		})
	}
}

// A connection may go on reading what it was given after the Write has failed, as
// HTTP/2 does when a client ends a stream: no other list may be put there.
func TestAFailedWriteKeepsItsBytes(t *testing.T) {
	write := func(text string, w io.Writer) error {
		a := &assembly{frame: &frame{head: []byte("["), tail: []byte("]")}}
		a.store = storeOf(&Encoder{}, 1<<20)
		item := []byte(text + ",")
		c := emptyChunk(place{format: &format{}}, make([]identity, 1))
		c.ends[0] = len(item)
		c.content.Store(&content{plain: item})
		a.parts = []part{{chunk: c, keep: true}}
		return a.writeMember(w, a.frame.head)
	}
	gone := errors.New("the client has gone")
	for range 100 { // a pool gives a buffer back most of the time
		var still []byte
		require.ErrorIs(t, write("the first client's", writerFunc(func(p []byte) (int, error) {
			still = p
			return 0, gone
		})), gone)
		was := bytes.Clone(still)
		require.NoError(t, write("what only the second client may see", io.Discard))
		require.Equal(t, was, still)
	}
}
