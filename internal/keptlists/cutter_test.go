// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"
)

// Items that an encoder has put next to each other are taken apart where they
// end, whatever is in them.
func TestCutterTakesItemsApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.SampledFrom([]rune(`"\{}[],: <aé`+"\n\x00")), 0, 12, -1)
		values := rapid.SliceOfN(rapid.Map(rapid.MapOf(text, rapid.SliceOfN(text, 0, 3)), func(m map[string][]string) any { return m }), 1, 5).Draw(t, "values")
		var items []string
		for _, v := range values {
			written, err := json.Marshal(v)
			require.NoError(t, err)
			items = append(items, string(written))
		}
		c := cutter{syntax: jsonSyntax, rest: []byte(strings.Join(items, ","))}
		for _, want := range items {
			got, ok := c.next()
			require.True(t, ok)
			require.Equal(t, want, string(got))
		}
		_, ok := c.next()
		require.False(t, ok)

		var fields []byte
		for _, item := range items {
			fields = protowire.AppendBytes(protowire.AppendTag(fields, 2, protowire.BytesType), []byte(item))
		}
		c = cutter{syntax: protobufSyntax, rest: fields}
		for _, want := range items {
			got, ok := c.next()
			require.True(t, ok)
			require.True(t, strings.HasSuffix(string(got), want))
			require.LessOrEqual(t, len(got)-len(want), 4)
		}
		require.Empty(t, c.rest)
	})
}

// Bytes that no encoder writes are not cut.
func TestCutterRefuses(t *testing.T) {
	for _, rest := range []string{"", "1", `"a"`, "{", `{"a`, `{"a\"`, `{"a":"\\\"}`, "[1]", "{},", "{};{}", "{}{}"} {
		c := cutter{syntax: jsonSyntax, rest: []byte(rest)}
		_, ok := c.next()
		require.False(t, ok, rest)
	}
	for _, rest := range [][]byte{{}, {0x08, 0x01}, {0x12, 0x05, 0x00}, {0x12}, {0xff, 0xff}} {
		c := cutter{syntax: protobufSyntax, rest: rest}
		_, ok := c.next()
		require.False(t, ok, "%x", rest)
	}
}
