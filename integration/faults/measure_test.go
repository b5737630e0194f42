// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMeasure(t *testing.T) {
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	all := []outcome{
		{at(-50), at(-40), true}, // before
		{at(10), at(20), true},
		{at(500), at(600), true}, // begun after, ended before the two that follow
		{at(30), at(1030), false},
		{at(900), at(1100), true},
		{at(2100), at(2110), true}, // after
	}
	f := measure(all, at(0), at(2000))
	require.Equal(t, figure{total: 4, answered: 3, gap: 900 * time.Millisecond}, f)
	require.Equal(t, "75 %, 0.9 s", f.String())
	require.Equal(t, figure{gap: time.Second}, measure(nil, at(0), at(1000)))
}
