// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"
)

// TestIncomplete: a watch that has not begun, or has not come as far as it must,
// is a violation of Complete; one that has what it selects is none, although its
// last version is below.
func TestIncomplete(t *testing.T) {
	on := Selection{Labels: labels.SelectorFromSet(labels.Set{"flip": "on"})}
	onlyA := Selection{Namespace: "x", Labels: on.Labels}
	for name, c := range map[string]struct {
		follower Follower
		upTo     int64
		found    string
	}{
		"never began":           {Follower{Name: "w", Selection: on}, 7, `Complete: watch w of namespace="" labels="flip=on": it never began`},
		"one event is missing":  {Follower{Name: "w", Selection: on, To: 5}, 7, "1 events above 5 have not come; the first is {ADDED y/b 7 b2"},
		"a deletion is missing": {Follower{Name: "w", Selection: onlyA, To: 2}, 7, "the first is {DELETED x/a 4 a1"},
		"all are missing":       {Follower{Name: "w", Selection: Selection{}, To: 1}, 7, "6 events above 1"},
		"at the version":        {Follower{Name: "w", Selection: on, To: 7}, 7, ""},
		"nothing is selected":   {Follower{Name: "w", Selection: onlyA, To: 4}, 7, ""},
		"nothing is asked yet":  {Follower{Name: "w", Selection: on, To: 5}, 6, ""},
	} {
		t.Run(name, func(t *testing.T) {
			found := Incomplete(past(), c.upTo, c.follower)
			if c.found == "" {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			require.Equal(t, Complete, found[0].Property)
			require.Contains(t, found[0].String(), c.found)
		})
	}
}

// TestAwait: what is found still when nobody waits any longer is a violation.
func TestAwait(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	found := Await(ctx, time.Nanosecond, func() Violations {
		if asked++; asked == 3 {
			return nil
		}
		return Incomplete(past(), 7, Follower{Name: "w"})
	})
	require.Empty(t, found)
	require.Equal(t, 3, asked)
	cancel()
	found = Await(ctx, time.Hour, func() Violations { return Incomplete(past(), 7, Follower{Name: "w"}) })
	require.Len(t, found, 1)
}
