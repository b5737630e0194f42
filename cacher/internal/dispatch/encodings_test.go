// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"runtime"
	"strings"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// A server that has had a compressed watch keeps nothing of a cache that has ended, nor of
// the events that its clients encode afterwards (regression 177).
func TestEncodingsEndWithTheirCache(t *testing.T) {
	server := map[int][]byte{}
	e := newKeptEncodings(keeperFunc(func(event []byte) func() {
		n := len(server)
		server[n] = event
		return func() { delete(server, n) }
	}), nil)
	e.setLimit(1 << 20)
	var kept []weak.Pointer[byte]
	encode := func() {
		_, err := e.of(new(watchcache.Element), "json", func() ([]byte, error) {
			raw := []byte(strings.Repeat("x", 1000))
			kept = append(kept, weak.Make(&raw[0]))
			return raw, nil
		})
		require.NoError(t, err)
	}
	left := func() (n int) {
		runtime.GC()
		for _, p := range kept {
			if p.Value() != nil {
				n++
			}
		}
		return n
	}
	encode()
	e.mu.kept[0].of = nil // so that only the server has it
	require.Equal(t, 1, left(), "the server keeps nothing for compressed watches")
	e.mu.kept[0].of = new(watchcache.Element).Encodings()
	e.close()
	encode()
	require.Zero(t, e.bytes.Load())
	e = nil
	require.Zero(t, left(), "serializations are left")
	runtime.KeepAlive(server)
}
