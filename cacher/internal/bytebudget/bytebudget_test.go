// SPDX-License-Identifier: Apache-2.0

package bytebudget

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A lower limit makes both users drop what is beyond it, a higher one nobody.
func TestSetLimit(t *testing.T) {
	a, b := New(100)
	shrunk := 0
	for _, s := range []*Share{a, b} {
		s.OnShrink(func() {
			shrunk++
			s.Add(s.Allowance() - s.Kept())
		})
	}
	a.Add(60)
	b.Add(40)
	b.SetLimit(200)
	require.Zero(t, shrunk)
	require.EqualValues(t, 160, a.Allowance())
	a.SetLimit(50)
	require.Positive(t, shrunk)
	require.LessOrEqual(t, a.Kept()+b.Kept(), int64(50))
	require.EqualValues(t, 25, b.Kept())
	require.False(t, a.None())
	none, _ := New(-1)
	require.True(t, none.None())
}

// A user without a function to drop by is left alone, as is one that keeps no more than
// it may; a limit that stays makes nobody drop.
func TestOnlyWhoIsOverDrops(t *testing.T) {
	a, b := New(100)
	b.Add(80)
	a.Add(40)
	a.Settle() // b has no function
	a.SetLimit(90)
	shrunk := 0
	b.OnShrink(func() { shrunk++ })
	a.SetLimit(90)
	require.Zero(t, shrunk, "the limit is as before")
	a.Settle()
	require.Equal(t, 1, shrunk, "b keeps more than is left of the half of a")
	b.Add(b.Allowance() - b.Kept())
	require.False(t, b.Over(), "all that it may keep is not too much")
	a.Settle()
	require.Equal(t, 1, shrunk)
	b.Add(-b.Kept())
	a.SetLimit(80)
	require.Equal(t, 1, shrunk, "b keeps nothing")
}

// A limit of nothing at all is one: what is empty may be kept.
func TestLimitOfZero(t *testing.T) {
	a, b := New(0)
	require.False(t, a.None())
	require.False(t, a.Over())
	b.Add(1)
	require.True(t, b.Over())
}
