// SPDX-License-Identifier: Apache-2.0

package match

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// numbered returns n numbered texts, with a separator between them.
func numbered(format string, n int, separator string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(all, separator)
}

// The weight counts requirements, values and text, of single keys as well.
func TestWeight(t *testing.T) {
	for _, tc := range []struct {
		key, label, field string
		want              int
	}{
		{"/pods/", "", "", 0},
		{"/pods/", "a=1", "f=1,g!=2", 4},
		{"/pods/", "a in (1,2,3)", "", 4},
		{"/pods/", "a notin (1,2,3),!b,c", "", 6},
		{"/pods/", "a!=1", "", 1},
		{"/pods/a/one", "a notin (1,2,3)", "", 4},
		{"/pods/", "", "f!=" + strings.Repeat("x", 64_000), 1001},
		{"/pods/" + strings.Repeat("x", 64_000) + "/", "", "", 1000},
	} {
		q := ask(t, tc.key, tc.label, tc.field)
		assert.Equal(t, tc.want, NewGroups[int](podIndexes()).Join(q.Name(), q).weight, "labels %q, fields %.10q", tc.label, tc.field)
	}
	q := ask(t, "/pods/", numbered("a%d", 20, ","), numbered("f%d=1", 7, ","))
	assert.Equal(t, 27, Requirements(&q.predicate), "the requirements of a request")
	assert.Zero(t, Requirements(&storage.SelectionPredicate{}))
	shard := storage.SelectionPredicate{ShardSelector: half{}}
	assert.Equal(t, 1, Requirements(&shard))
	q = NewQuery("/pods/", true, shard)
	name := q.Name()
	name.shards = strings.Repeat("x", 64_000)
	assert.Equal(t, 1001, NewGroups[int](podIndexes()).Join(name, q).weight)
}

// Groups of exactly the weights at which others are treated differently leave nothing.
func TestWeightsAtTheLimits(t *testing.T) {
	for _, weight := range []int{large, heavy} {
		all := NewGroups[int](podIndexes())
		join := func() *Group[int] {
			q := ask(t, "/pods/", "a notin ("+numbered("v%d", weight-1-weight/16, ",")+")", numbered("f%d!=1", weight/16, ","))
			name := q.Name()
			name.Label, name.Field = "label", "field"
			return all.Join(name, q)
		}
		first := join()
		require.Equal(t, weight, first.weight)
		require.Same(t, first, join(), "queries of this weight share a group")
		require.True(t, all.File(first))
		all.Unfile(first)
		assert.Zero(t, all.dispatched)
		all.Leave(first)
		all.Leave(first)
		assert.Empty(t, all.byName)
	}
}

// Small queries never wait for large ones.
func TestSmallQueriesTakeNoTurn(t *testing.T) {
	turn <- struct{}{}
	defer func() { <-turn }()
	q := ask(t, "/pods/", "app=1", "")
	done := make(chan struct{})
	go func() {
		q.matchesInTurn(pod("a/one", 1))
		NewGroups[int](podIndexes()).Join(q.Name(), q).Outcomes(make([]Outcome, 1), []*watchcache.Event{{RV: 1, Type: watchcache.Added, Element: pod("a/one", 1)}}, 0, nil)
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("a small query waits for the turn of a large one")
	}
}

// Large queries are filed while there is room for them, one group of many watchers once; small
// ones always are.
func TestLargeQueriesThatAreFiled(t *testing.T) {
	all := NewGroups[int](podIndexes())
	join := func(values int) *Group[int] {
		q := ask(t, "/pods/", "a notin ("+numbered("v%d", values, ",")+")", "")
		return all.Join(q.Name(), q)
	}
	first, second, third := join(1800), join(1800), join(300)
	assert.NotSame(t, first, second, "heavy queries were compared")
	assert.Same(t, third, join(300), "queries that are not heavy share a group")
	require.True(t, all.File(first))
	require.True(t, all.File(second))
	require.False(t, all.File(third), "the dispatcher evaluates more than its share")
	require.True(t, all.File(join(20)), "a small query was refused")
	all.Unfile(first)
	require.True(t, all.File(third), "an unfiled group still takes room")
	all.Unfile(second)
	all.Unfile(third)
	assert.Zero(t, all.dispatched)
	all.Leave(first)
	all.Leave(third)
	all.Leave(third)
	assert.Len(t, all.byName, 1, "the groups of %d names are kept beside that of the small query", len(all.byName)-1)
}

// A query that is not the dispatcher's is evaluated like one that is.
func TestOutcomesOfLargeQueries(t *testing.T) {
	events := []*watchcache.Event{
		{RV: 4, Type: watchcache.Added, Element: pod("a/one", 4, "app=x")},
		{RV: 5, Type: watchcache.Modified, Previous: pod("a/one", 4, "app=x"), Element: pod("a/one", 5, "app=x")},
		{RV: 6, Type: watchcache.Modified, Previous: pod("a/one", 5, "app=x"), Element: pod("a/one", 6, "app=v1")},
		{RV: 7, Type: watchcache.Modified, Previous: pod("a/one", 6, "app=v1"), Element: pod("a/one", 7, "app=y")},
		{RV: 8, Type: watchcache.Deleted, Previous: pod("a/one", 7, "app=y"), Element: pod("a/one", 8, "app=y")},
	}
	for _, values := range []int{2, 2000} {
		q := ask(t, "/pods/", "app notin ("+numbered("v%d", values, ",")+")", "")
		g := NewGroups[int](podIndexes()).Join(q.Name(), q)
		outcomes := make([]Outcome, len(events))
		g.Outcomes(outcomes, events, 4, func() bool { return false })
		assert.Equal(t, []Outcome{Unaffected, Stays, Leaves, Enters, Leaves}, outcomes, "with %d values", values)
	}
}

// The values of an Interest are few, and those of later requirements count all the same.
func TestInterestInManyValues(t *testing.T) {
	x := podIndexes()
	for _, tc := range []struct {
		label, field string
		required     int
	}{
		{"app in (" + numbered("v%d", 64, ",") + ")", "", 1},
		{"app in (" + numbered("v%d", 65, ",") + ")", "", 0},
		{"app in (" + numbered("v%d", 65, ",") + ")", "spec.nodeName=n1", 1},
		{"app=" + strings.Repeat("x", 63), "spec.nodeName=" + strings.Repeat("n", 10_000), 1},
	} {
		q := ask(t, "/pods/", tc.label, tc.field)
		assert.Len(t, x.Interest(&q).Required, tc.required, "labels %.30q, fields %.30q", tc.label, tc.field)
	}
}
