// SPDX-License-Identifier: Apache-2.0

package status

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// someWatchers is so many that pages begin, end and lie within them.
const someWatchers = 256

// someRows returns n rows of which many are equal in one respect or another.
func someRows(n int, seed uint64) []Watcher {
	random := rand.New(rand.NewPCG(seed, 0))
	number := func() uint64 { return random.Uint64N(1 << random.IntN(63)) }
	names := []string{"", "a", "system:n", "system:node:1", "system:node:2", "system:node:1\x00", "\xff"}
	// Mostly names begin alike, and some do not.
	prefix := []string{"", "system:node:node-", "user-"}[random.IntN(3)]
	name := func() string {
		if random.IntN(8) != 0 && prefix != "" {
			return prefix + strconv.Itoa(int(number()))
		}
		if random.IntN(2) == 0 {
			return names[random.IntN(len(names))]
		}
		return "user-" + strconv.Itoa(int(number()))
	}
	rows := make([]Watcher, n)
	for i := range rows {
		rows[i] = Watcher{
			ID:      uint64(i*7919) % 1_000_003, // each once, in no order
			Client:  Client{User: name(), UserAgent: name(), Address: name()},
			Started: time.Unix(int64(number()>>20), 0), State: states[random.IntN(3)],
			Lag: number(), Delivered: number(), Queued: int(number()), HeldBytes: int64(number()),
		}
	}
	return rows
}

// A page is what is found at its place when all rows are sorted, in order, however many
// are equal, and however large Offset and Limit are.
func TestPagesAreThoseOfTheSortedWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := someRows(rapid.IntRange(0, 5*someWatchers).Draw(t, "rows"), rapid.Uint64().Draw(t, "seed"))
		p := Query{
			Sort: rapid.SampledFrom(Orders()).Draw(t, "sort"), Reverse: rapid.Bool().Draw(t, "reverse"),
			Offset: rapid.OneOf(rapid.IntRange(0, 10), rapid.IntRange(0, 6*someWatchers), rapid.IntMin(0)).Draw(t, "offset"),
			Limit:  rapid.OneOf(rapid.IntRange(-1, 50), rapid.IntRange(0, 6*someWatchers), rapid.IntMin(-1)).Draw(t, "limit"),
		}
		want := max(0, len(rows)-p.Offset)
		if p.Limit >= 0 {
			want = min(p.Limit, want)
		}
		got := p.Page(slices.Clone(rows))
		require.Len(t, got, want, "the page %+v", p)
		all := Query{Sort: p.Sort, Reverse: p.Reverse, Limit: -1}.Page(slices.Clone(rows))
		for i := range got {
			require.Equal(t, all[p.Offset+i].ID, got[i].ID, "row %d of the page %+v", i, p)
		}
		for i := range max(0, len(got)-1) {
			a, b := &got[i], &got[i+1]
			if p.Reverse {
				a, b = b, a
			}
			c := orders[p.Sort](a, b)
			require.True(t, c < 0 || c == 0 && got[i].ID < got[i+1].ID, "rows %d and %d of the page %+v", i, i+1, p)
		}
	})
}
