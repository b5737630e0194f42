// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// An index that is added has the changes that come while it is built, and is refused if it can't
// have them all.
func TestIndexIsBuiltBesideChanges(t *testing.T) {
	for name, test := range map[string]struct {
		meanwhile func(s *watchcache.State)
		want      error
	}{
		"nothing": {func(*watchcache.State) {}, nil},
		"changes": {func(s *watchcache.State) {
			for i := range uint64(200) { // more than are read at a time
				apply(t, s, added(fmt.Sprint("later-", i), i+3, "x"))
			}
			apply(t, s, modified("a", 300, "y"), deleted("b", 301, "x"))
		}, nil},
		"a list": {func(s *watchcache.State) { s.Replace([]*watchcache.Element{element("a", 1, "x")}, 5) }, watchcache.ErrExpired},
		"more changes than the window holds": {func(s *watchcache.State) {
			for rv := uint64(3); rv < 10; rv++ {
				apply(t, s, modified("a", rv, "y"))
				s.Dispatched(s.Stats().Next)
			}
			s.Trim(1 << 60)
		}, watchcache.ErrExpired},
	} {
		t.Run(name, func(t *testing.T) {
			s := watchcache.New(watchcache.Config{History: 1, WindowBytes: 1 << 40})
			s.Replace([]*watchcache.Element{element("a", 1, "x"), element("b", 1, "x")}, 2)
			began := false
			late := watchcache.Index{Name: "late", Values: func(e *watchcache.Element, dst []string) []string {
				if !began {
					began = true
					test.meanwhile(s)
				}
				return indexes[0].Values(e, dst)
			}}
			bytes, err := s.AddIndex(late, 1<<40)
			if test.want != nil {
				require.ErrorIs(t, err, test.want)
				require.False(t, s.Latest().HasIndex("late"))
				require.Zero(t, s.IndexBytes("late"))
				return
			}
			require.NoError(t, err)
			latest := s.Latest()
			require.True(t, latest.HasIndex("late"))
			require.Positive(t, bytes)
			require.Equal(t, bytes, s.IndexBytes("late"))
			values := 0
			for _, value := range []string{"x", "y"} {
				latest.RangeIndex("late", value, "", "", func(e *watchcache.Element) bool {
					require.Same(t, latest.Get(e.Key), e)
					require.Equal(t, value, e.Labels["value"])
					values++
					return true
				})
			}
			require.Equal(t, latest.Len(), values)
			s.DropIndex("late")
			require.False(t, s.Latest().HasIndex("late"))
			require.Zero(t, s.IndexBytes("late"))
		})
	}
}
