// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// One user has a quarter of the room, and all together have no more than all of it.
func TestRoom(t *testing.T) {
	r := &room{all: 8, one: 2, users: map[string]int{}, refused: prometheus.NewCounter(prometheus.CounterOpts{Name: "refused"})}
	var leave []func()
	for _, user := range []string{"a", "a", "b", "b", "c", "c", "d", "d"} {
		left, ok := r.enter(user)
		require.True(t, ok, user)
		leave = append(leave, left)
		if len(leave) == 2 {
			_, ok = r.enter("a")
			require.False(t, ok)
		}
	}
	_, ok := r.enter("e")
	require.False(t, ok)
	leave[0]()
	left, ok := r.enter("a")
	require.True(t, ok)
	leave[0] = left
	for _, l := range leave {
		l()
	}
	require.Zero(t, r.total)
	require.Empty(t, r.users)
}
