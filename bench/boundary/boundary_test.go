// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A change is seen, and changes neither the size nor anything else.
func TestDevices(t *testing.T) {
	for _, i := range []int{0, 1, 4999, 99_999} {
		first, err := device(i, 0)
		require.NoError(t, err)
		again, err := device(i, 0)
		require.NoError(t, err)
		require.Equal(t, string(first), string(again))
		require.InDelta(t, 3500, len(first), 100)
		changed, err := device(i, 123_456)
		require.NoError(t, err)
		require.NotEqual(t, string(first), string(changed))
		require.Len(t, changed, len(first))
		var d fleetv1.Device
		require.NoError(t, json.Unmarshal(first, &d))
		require.Equal(t, fmt.Sprintf("/p/fleet.example.com/devices/%s/%s", d.Namespace, d.Name), key("/p", i))
	}
}

// sample is a stack, the innermost function first, that was seen so many times.
type sample struct {
	stack string
	value int64
}

func profileOf(samples ...sample) *profile.Profile {
	p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}}}
	for _, s := range samples {
		stack := &profile.Sample{Value: []int64{1, s.value}}
		for name := range strings.SplitSeq(s.stack, " < ") {
			stack.Location = append(stack.Location, &profile.Location{Line: []profile.Line{{Function: &profile.Function{Name: name}}}})
		}
		p.Sample = append(p.Sample, stack)
	}
	return p
}

func TestBreakdown(t *testing.T) {
	for stack, want := range map[string]Part{
		"runtime.memmove < encoding/json.Marshal < net/http.(*conn).serve":                                                                Encoding,
		"runtime.mallocgc < github.com/kube-watchcache/watchcache/watchcache.(*State).Apply":                                              Cache,
		"k8s.io/apiserver/pkg/storage/cacher.(*Cacher).GetList < net/http.HandlerFunc.ServeHTTP":                                          Cache,
		"syscall.Syscall < net.(*conn).Write < crypto/tls.(*Conn).Write < net/http.(*http2serverConn).serve":                              Transport,
		"compress/flate.(*compressor).deflate < compress/gzip.(*Writer).Write < k8s.io/apiserver/pkg/endpoints/handlers/responsewriters.": Compression,
		"encoding/json.Unmarshal < k8s.io/apiserver/pkg/storage/etcd3.decode":                                                             Storage,
		"syscall.Syscall < net.(*conn).Read < google.golang.org/grpc/internal/transport.(*http2Client).reader":                            Storage,
		"runtime.gcDrain < runtime.gcBgMarkWorker":                                                                                        Collection,
		"runtime.gcAssistAlloc < runtime.mallocgc < encoding/json.Unmarshal < k8s.io/apiserver/pkg/storage/etcd3.decode":                  Collection,
		"runtime.findRunnable < runtime.schedule":                                                                                         Rest,
		"strings.Cut < k8s.io/apiserver/pkg/endpoints/filters.WithAuthentication.func1 < net/http.HandlerFunc.ServeHTTP":                  Rest,
		"k8s.io/apimachinery/pkg/runtime.(*Scheme).Convert < k8s.io/apimachinery/pkg/runtime/serializer/versioning.(*codec).Encode":       Conversion,
		"github.com/kube-watchcache/watchcache/cacher/internal/listcache.(*Encoder).write":                                                Encoding,
	} {
		b, err := breakdown(profileOf(sample{stack, 7}))
		require.NoError(t, err)
		require.Equal(t, Breakdown{want: 7}, b, stack)
	}
	b, err := breakdown(profileOf(sample{"main.f", 1}, sample{"main.g", 2}, sample{"crypto/tls.h", 4}))
	require.NoError(t, err)
	require.Equal(t, Breakdown{Rest: 3, Transport: 4}, b)
	require.Equal(t, 7*time.Nanosecond, b.Total())
	_, err = breakdown(&profile.Profile{SampleType: []*profile.ValueType{{Type: "space", Unit: "bytes"}}})
	require.ErrorContains(t, err, "no CPU time")
}

// Events are lines, in whatever pieces they come.
func TestWatchEvents(t *testing.T) {
	long := strings.Repeat("x", 200_000)
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"at once": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader, "halved": iotest.HalfReader,
	} {
		w := &Watch{events: wrap(strings.NewReader("one\n\n" + long + "\ntwo\nrest")), buffer: make([]byte, 16)}
		for _, want := range []string{"one", "", long, "two"} {
			got, err := w.next()
			require.NoError(t, err, name)
			require.Equal(t, want, string(got), name)
		}
		_, err := w.next()
		require.ErrorContains(t, err, "ended the watch", name)
	}
	w := &Watch{events: strings.NewReader(`{"type":"ERROR","object":{"code":410}}` + "\n"), buffer: make([]byte, 16)}
	require.ErrorContains(t, w.Next(), `"code":410`)
	w = &Watch{events: iotest.ErrReader(io.ErrUnexpectedEOF), buffer: make([]byte, 16)}
	require.ErrorIs(t, w.Next(), io.ErrUnexpectedEOF)
	// Bookmarks come when the server likes.
	w = &Watch{events: strings.NewReader(`{"type":"BOOKMARK","object":{}}` + "\n" + `{"type":"ADDED"}` + "\n"), buffer: make([]byte, 16)}
	require.NoError(t, w.Next())
	require.Error(t, w.Next())
}

// Changes keep their rate, also behind a slow storage, and end with the first
// failure.
func TestChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := &Changes{cancel: cancel}
		var latest atomic.Int64
		done := make(chan error, 1)
		go func() {
			done <- c.write(ctx, 1000, func(_ context.Context, n int) error {
				<-time.After(5 * time.Millisecond) // of virtual time
				latest.Store(max(latest.Load(), int64(n)))
				return nil
			})
		}()
		<-time.After(10 * time.Second)
		synctest.Wait()
		require.InDelta(t, 10_000, c.Written(), 30)
		cancel()
		require.NoError(t, <-done)
		require.Positive(t, latest.Load())
	})
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("no etcd")
		c := &Changes{}
		err := c.write(t.Context(), 100, func(_ context.Context, n int) error {
			if n == 50 {
				return broken
			}
			return nil
		})
		require.ErrorIs(t, err, broken)
	})
}
