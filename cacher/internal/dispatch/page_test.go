// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unique"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kube-watchcache/watchcache/cacher/status"
)

// naively says how two rows compare, read off the rows themselves.
var naively = map[string]func(a, b *row) int{
	"lag": func(a, b *row) int {
		return cmp.Or(cmp.Compare(b.lag, a.lag), cmp.Compare(b.queued, a.queued))
	},
	"queued":    func(a, b *row) int { return cmp.Compare(b.queued, a.queued) },
	"delivered": func(a, b *row) int { return cmp.Compare(b.delivered, a.delivered) },
	"bytes":     func(a, b *row) int { return cmp.Compare(b.bytes, a.bytes) },
	"age":       func(a, b *row) int { return cmp.Compare(a.watcher.began, b.watcher.began) },
	"state":     func(a, b *row) int { return cmp.Compare(b.phase, a.phase) },
	"user":      byClient(func(c status.Client) string { return c.User }),
	"userAgent": byClient(func(c status.Client) string { return c.UserAgent }),
	"address":   byClient(func(c status.Client) string { return c.Address }),
}

func byClient(name func(status.Client) string) func(a, b *row) int {
	return func(a, b *row) int {
		return strings.Compare(name(a.watcher.client.Value()), name(b.watcher.client.Value()))
	}
}

// someWatchers is so many that pages begin, end and lie within them.
const someWatchers = 256

// someRows returns n rows of which many are equal in one respect or another.
func someRows(n int, seed uint64) []row {
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
	rows := make([]row, n)
	for i := range rows {
		rows[i] = row{
			watcher: &watcher{
				began:  time.Duration(number()),
				client: unique.Make(status.Client{User: name(), UserAgent: name(), Address: name()}),
			},
			id:    uint64(i*7919) % 1_000_003, // each once, in no order
			phase: phase(random.IntN(3)), lag: number(), delivered: number(), queued: int(number()), bytes: int64(number()),
		}
	}
	return rows
}

// A page is what is found at its place when all rows are sorted, however many
// are equal, and however large Offset and Limit are.
func TestPagesAreThoseOfTheSortedWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := someRows(rapid.IntRange(0, 5*someWatchers).Draw(t, "rows"), rapid.Uint64().Draw(t, "seed"))
		p := status.Query{
			Sort: rapid.SampledFrom(status.Orders()).Draw(t, "sort"), Reverse: rapid.Bool().Draw(t, "reverse"),
			Offset: rapid.OneOf(rapid.IntRange(0, 10), rapid.IntRange(0, 6*someWatchers), rapid.IntMin(0)).Draw(t, "offset"),
			Limit:  rapid.OneOf(rapid.IntRange(-1, 50), rapid.IntRange(0, 6*someWatchers), rapid.IntMin(-1)).Draw(t, "limit"),
		}
		whole := make([]int, len(rows))
		for i := range whole {
			whole[i] = i
		}
		slices.SortFunc(whole, func(a, b int) int {
			c := naively[p.Sort](&rows[a], &rows[b])
			if p.Reverse {
				c = -c
			}
			return cmp.Or(c, cmp.Compare(rows[a].id, rows[b].id))
		})
		want := whole[min(p.Offset, len(whole)):]
		if p.Limit >= 0 {
			want = want[:min(p.Limit, len(want))]
		}
		got := pageOf(rows, p)
		require.True(t, slices.Equal(want, got), "the page %+v has %d rows from %v on, want %d from %v on",
			p, len(got), got[:min(3, len(got))], len(want), want[:min(3, len(want))])
	})
}

// Every order that status names is there, and no other.
func TestOrders(t *testing.T) {
	require.Equal(t, status.Orders(), slices.Sorted(maps.Keys(orders)))
}

// A page of no rows is empty, however many watchers there are: a limit of 0 asks
// for the counts alone.
func TestPagesOfNoRows(t *testing.T) {
	rows := someRows(2*someWatchers, 1)
	for _, p := range []status.Query{{}, {Offset: 1}, {Offset: len(rows)}, {Offset: len(rows), Limit: -1}} {
		p.Sort = status.Orders()[0]
		require.Empty(t, pageOf(rows, p), "the page %+v", p)
	}
}
