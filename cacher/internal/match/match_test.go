// SPDX-License-Identifier: Apache-2.0

package match

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// podIndexes are the indexes of a resource with a trigger function for
// spec.nodeName, an index of the field spec.restartPolicy and one of the label
// app.
func podIndexes() *Indexes {
	policy := func(object any) ([]string, error) {
		pod := object.(*example.Pod)
		if pod.Name == "unplaced" {
			return nil, errors.New("the index does not know the pod")
		}
		return []string{string(pod.Spec.RestartPolicy)}, nil
	}
	return NewIndexes(Config{
		Prefix:   "/pods/",
		Triggers: storage.IndexerFuncs{"spec.nodeName": func(o runtime.Object) string { return o.(*example.Pod).Spec.NodeName }},
		Indexers: cache.Indexers{storage.FieldIndex("spec.restartPolicy"): policy},
		Labels:   []string{"app"},
	})
}

// ask returns the query for a key, a prefix if it ends with "/", and selectors.
func ask(t testing.TB, key, label, field string) Query {
	t.Helper()
	ofLabels, err := labels.Parse(label)
	require.NoError(t, err)
	ofFields, err := fields.ParseSelector(field)
	require.NoError(t, err)
	return NewQuery(key, strings.HasSuffix(key, "/"), storage.SelectionPredicate{Label: ofLabels, Field: ofFields})
}

var names watchcache.FieldNames

// pod returns an element with the key /pods/NAME and attributes "label=value"
// or "some.field=value".
func pod(name string, rv uint64, attributes ...string) *watchcache.Element {
	namespace, short, _ := strings.Cut(name, "/")
	object := &example.Pod{}
	object.Namespace, object.Name = namespace, short
	set, selectable := labels.Set{}, fields.Set{nameField: short, namespaceField: namespace}
	for _, a := range attributes {
		attribute, value, _ := strings.Cut(a, "=")
		switch attribute {
		case "spec.nodeName":
			object.Spec.NodeName = value
		case "spec.restartPolicy":
			object.Spec.RestartPolicy = example.RestartPolicy(value)
		}
		if strings.Contains(attribute, ".") {
			selectable[attribute] = value
		} else {
			set[attribute] = value
		}
	}
	return &watchcache.Element{Key: "/pods/" + name, RV: rv, Object: object, Labels: set, Fields: names.Compact(selectable)}
}

func TestEqualities(t *testing.T) {
	for _, tc := range []struct {
		label, field string
		want         string
	}{
		{"", "", ""},
		{"a=1", "", "label a [1]"},
		{"a==1,b in (y,x,y)", "", "label a [1], label b [x y]"},
		{"a!=1,b,!c,d notin (x),e>3", "", ""},
		{"a=1", "f.x=1,f.y==2,f.z!=3", "field f.x [1], field f.y [2], label a [1]"},
		{"a in (1,2),a=1", "", "label a [1 2], label a [1]"},
	} {
		q := ask(t, "/pods/", tc.label, tc.field)
		var got []string
		for _, e := range q.equalities {
			kind := map[attributeKind]string{byField: "field", byLabel: "label"}[e.kind]
			got = append(got, fmt.Sprintf("%s %s %v", kind, e.name, e.values))
			assert.Len(t, e.values, cap(e.values), "%q: appending to the values of %s would write into the query", tc.label, e.name)
		}
		slices.Sort(got) // a selector orders its requirements as it likes
		assert.Equal(t, tc.want, strings.Join(got, ", "), "labels %q, fields %q", tc.label, tc.field)
	}
	one := ask(t, "/pods/a/one", "a=1", "f.x=1")
	assert.Nil(t, one.equalities, "the query of a key was analysed")
}

// Values that a requirement names twice count once.
func TestEqualityHasNoValueTwice(t *testing.T) {
	r, err := labels.NewRequirement("a", selection.In, []string{"x", "y", "x"})
	require.NoError(t, err)
	q := NewQuery("/pods/", true, storage.SelectionPredicate{Label: labels.NewSelector().Add(*r)})
	assert.Equal(t, []string{"x", "y"}, q.equalities[0].values)
}

func TestRarest(t *testing.T) {
	x := podIndexes()
	nine := "a in (1,2,3,4,5,6,7,8,9)"
	for _, tc := range []struct {
		key, label, field string
		want              attribute
		values            int
	}{
		{"/pods/a/one", "app=1", "metadata.name=two", attribute{byKey, ""}, 1},
		{"/pods/", "", "", attribute{byNothing, ""}, 1},
		{"/pods/", "a!=1", "f!=1", attribute{byNothing, ""}, 1},
		{"/pods/", "", "metadata.namespace=a", attribute{byField, namespaceField}, 1},
		{"/pods/a/", "", "metadata.namespace=a", attribute{byScope, ""}, 1},
		{"/pods/a/", "a=1", "", attribute{byLabel, "a"}, 1},
		{"/pods/", nine, "", attribute{byNothing, ""}, 1},
		{"/pods/a/", nine, "", attribute{byScope, ""}, 1},
		{"/pods/", "a in (1,2)", "metadata.namespace=a", attribute{byLabel, "a"}, 2},
		{"/pods/", "a in (1,2),b=1", "", attribute{byLabel, "b"}, 1},
		{"/pods/", "a in (1,2),b in (1,2,3)", "", attribute{byLabel, "a"}, 2},
		{"/pods/", "a=1,app in (1,2)", "", attribute{byLabel, "app"}, 2},
		{"/pods/", "app=1", "f.x=1", attribute{byField, "f.x"}, 1},
		{"/pods/", "", "f.x=1,f.y=2", attribute{byField, "f.x"}, 1},
		{"/pods/", "", "f.x=1,spec.restartPolicy=Always", attribute{byField, "spec.restartPolicy"}, 1},
		{"/pods/", "", "spec.restartPolicy=Always,spec.nodeName=n1", attribute{byTrigger, "spec.nodeName"}, 1},
		{"/pods/", "", "spec.nodeName=n1,metadata.name=one", attribute{byField, nameField}, 1},
	} {
		q := ask(t, tc.key, tc.label, tc.field)
		got := x.rarest(&q)
		assert.Equal(t, tc.want, got.attribute, "%s, labels %q, fields %q: what the query is filed under", tc.key, tc.label, tc.field)
		assert.Len(t, got.values, tc.values, "%s, labels %q, fields %q: the values of %v", tc.key, tc.label, tc.field, got.attribute)
	}
}

// An event visits the groups that it may affect, before and after it, each
// once; and nobody else.
func TestCandidates(t *testing.T) {
	all := NewGroups[string](podIndexes())
	groups := map[string]*Group[string]{}
	for name, q := range map[string]Query{
		"everything": ask(t, "/pods/", "", ""),
		"not":        ask(t, "/pods/", "app!=1", ""),
		"key":        ask(t, "/pods/a/one", "", ""),
		"scope":      ask(t, "/pods/a/", "", ""),
		"other":      ask(t, "/pods/b/", "", ""),
		"node":       ask(t, "/pods/", "", "spec.nodeName=n1"),
		"no node":    ask(t, "/pods/", "", "spec.nodeName="),
		"set":        ask(t, "/pods/", "app in (1,2)", ""),
		"name":       ask(t, "/pods/", "", "metadata.name=two"),
		"missing":    ask(t, "/pods/", "", "spec.gone="),
	} {
		g := all.Join(q.Name(), q)
		g.Members = []string{name}
		all.File(g)
		groups[name] = g
	}
	position := watchcache.Position(0)
	expect := func(what string, before, after *watchcache.Element, want ...string) {
		t.Helper()
		e := &watchcache.Event{Position: position, Type: watchcache.Modified, Element: after, Previous: before}
		position++
		var got []string
		all.Candidates(e, func(g *Group[string]) { got = append(got, g.Members...) })
		slices.Sort(got)
		slices.Sort(want)
		assert.Equal(t, want, got, what)
	}
	rest := []string{"everything", "not", "missing"}
	expect("new in a", nil, pod("a/one", 1, "app=1", "spec.nodeName=n1"), append(rest, "key", "scope", "node", "set")...)
	expect("from one value of a set to another", pod("a/one", 1, "app=1"), pod("a/one", 2, "app=2"), append(rest, "key", "scope", "no node", "set")...)
	expect("from one value to nobody's", pod("b/two", 1, "spec.nodeName=n1"), pod("b/two", 2, "spec.nodeName=n2"), append(rest, "other", "node", "name")...)
	expect("a label that goes", pod("c/x", 1, "app=2"), pod("c/x", 2), append(rest, "no node", "set")...)

	for _, name := range []string{"set", "everything", "key", "scope", "other", "node", "no node", "name"} {
		all.Unfile(groups[name])
	}
	expect("after some have gone", pod("a/one", 2, "app=2"), pod("a/one", 3, "app=1", "spec.nodeName=n1"), "not", "missing")
	assert.Len(t, all.filed, 2, "the tables that are kept are those of the missing field and of no equality")
	all.File(groups["set"])
	expect("filed again", nil, pod("a/one", 4, "app=1"), "not", "missing", "set")
}

// Groups that are filed beside others leave these where events find them, and the one
// that every event is for may be filed again.
func TestCandidatesAfterNeighboursHaveLeft(t *testing.T) {
	all := NewGroups[string](podIndexes())
	filed := func(name, label string) *Group[string] {
		q := ask(t, "/pods/", label, "")
		g := all.Join(Name{Key: name}, q)
		g.Members = []string{name}
		all.File(g)
		return g
	}
	position := watchcache.Position(0)
	visited := func() (got []string) {
		e := &watchcache.Event{Position: position, Type: watchcache.Added, Element: pod("a/one", 1, "app=1")}
		position++
		all.Candidates(e, func(g *Group[string]) { got = append(got, g.Members...) })
		slices.Sort(got)
		return got
	}
	stays, sameValue, otherValue := filed("stays", "app=1"), filed("same value", "app=1,x!=1"), filed("other value", "app=2")
	require.Equal(t, []string{"same value", "stays"}, visited())
	all.Unfile(sameValue)
	all.Unfile(otherValue)
	require.Equal(t, []string{"stays"}, visited())
	everything := filed("everything", "")
	all.Unfile(everything)
	require.Equal(t, []string{"stays"}, visited())
	all.File(everything)
	all.Unfile(stays)
	require.Equal(t, []string{"everything"}, visited())
}

// Queries that are the same share a group until each of their users has left;
// queries of one name that are not have groups of their own.
func TestGroups(t *testing.T) {
	all := NewGroups[int](podIndexes())
	join := func(label labels.Selector) *Group[int] {
		q := NewQuery("/pods/", true, storage.SelectionPredicate{Label: label})
		return all.Join(q.Name(), q)
	}
	none, everything := join(labels.Nothing()), join(labels.Everything())
	assert.NotSame(t, everything, none, "the selectors of nothing and of everything have two groups")
	assert.Equal(t, everything.Name, none.Name, "the selectors of nothing and of everything have one name")
	assert.Same(t, everything, join(nil), "no selector is not as good as that of everything")
	all.Leave(none)
	all.Leave(everything)
	assert.Same(t, everything, join(labels.Everything()), "a group with a user was forgotten")
	all.Leave(everything)
	all.Leave(everything)
	assert.Empty(t, all.byName, "names are kept for nobody")
}

func TestOutcome(t *testing.T) {
	for _, tc := range []struct {
		name          string
		key           string
		kind          watchcache.EventType
		before, after *watchcache.Element
		want          Outcome
	}{
		{"another namespace", "/pods/a/", watchcache.Added, nil, pod("ab/one", 1, "app=1"), Unaffected},
		{"another key", "/pods/a/o", watchcache.Added, nil, pod("a/one", 1, "app=1"), Unaffected},
		{"created", "/pods/a/", watchcache.Added, nil, pod("a/one", 1, "app=1"), Enters},
		{"created outside", "/pods/", watchcache.Added, nil, pod("a/one", 1, "app=2"), Unaffected},
		{"enters", "/pods/a/one", watchcache.Modified, pod("a/one", 1), pod("a/one", 2, "app=1"), Enters},
		{"stays", "/pods/", watchcache.Modified, pod("a/one", 1, "app=1"), pod("a/one", 2, "app=1"), Stays},
		{"stays, and changes", "/pods/", watchcache.Modified, pod("a/one", 1, "app=1"), pod("a/one", 2, "app=1", "b=2"), Stays},
		{"leaves", "/pods/", watchcache.Modified, pod("a/one", 1, "app=1"), pod("a/one", 2), Leaves},
		{"stays outside", "/pods/", watchcache.Modified, pod("a/one", 1), pod("a/one", 2), Unaffected},
		{"deleted", "/pods/", watchcache.Deleted, pod("a/one", 1, "app=1"), pod("a/one", 2, "app=1"), Leaves},
		{"deleted outside", "/pods/", watchcache.Deleted, pod("a/one", 1), pod("a/one", 2), Unaffected},
	} {
		q := ask(t, tc.key, "app=1", "")
		e := &watchcache.Event{Type: tc.kind, Element: tc.after, Previous: tc.before}
		for _, alike := range []bool{false, Alike(e)} {
			assert.Equal(t, tc.want, q.Outcome(e, alike), "%s (alike: %v)", tc.name, alike)
		}
	}
}

// half is the shard of the objects on node n1; nobody knows where those on no node are.
type half struct{ sharding.Selector }

func (half) Matches(o runtime.Object) (bool, error) {
	node := o.(*example.Pod).Spec.NodeName
	if node == "" {
		return true, errors.New("on no node")
	}
	return node == "n1", nil
}
func (half) Empty() bool    { return false }
func (half) String() string { return "half" }
func (half) Requirements() []sharding.ShardRangeRequirement {
	return make([]sharding.ShardRangeRequirement, 1)
}

// A shard selects by the object, which may change where labels and fields do not.
func TestShards(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ShardedListAndWatch, true)
	q := NewQuery("/pods/", true, storage.SelectionPredicate{ShardSelector: half{}})
	assert.False(t, q.Everything(), "a shard is everything")
	every := NewQuery("/pods/", true, storage.SelectionPredicate{ShardSelector: sharding.Everything()})
	assert.True(t, every.Everything(), "the shard of everything is less")
	on := func(node string) *watchcache.Element {
		e := pod("a/one", 1)
		e.Object.(*example.Pod).Spec.NodeName = node
		return e
	}
	for _, tc := range []struct {
		before, after string
		want          Outcome
	}{{"n1", "n2", Leaves}, {"n2", "n1", Enters}, {"n1", "n1", Stays}, {"n2", "n3", Unaffected}, {"n1", "", Leaves}, {"", "n2", Unaffected}} {
		e := &watchcache.Event{Type: watchcache.Modified, Element: on(tc.after), Previous: on(tc.before)}
		assert.True(t, Alike(e))
		assert.Equal(t, tc.want, q.Outcome(e, true), "from node %q to %q", tc.before, tc.after)
	}
}

// A read looks at the elements of the narrowest range.
func TestScan(t *testing.T) {
	x := podIndexes()
	state := watchcache.New(watchcache.Config{Indexes: x.OfState()})
	var elements []*watchcache.Element
	for i := range 100 {
		elements = append(elements, pod(fmt.Sprintf("ns%d/p%02d", i%10, i), uint64(i+1),
			fmt.Sprintf("app=a%d", i%2), fmt.Sprintf("spec.restartPolicy=r%d", i%20)))
	}
	elements = append(elements, pod("ns0/unplaced", 200, "app=a0", "spec.restartPolicy=r1"))
	state.Replace(elements, 200)
	for _, tc := range []struct {
		name, key, label, field string
		matches, looks          int
	}{
		{"everything", "/pods/", "", "", 101, 101},
		{"a prefix", "/pods/ns1/", "", "", 10, 10},
		{"a key", "/pods/ns1/p11", "app=a1", "", 1, 1},
		{"a key that does not match", "/pods/ns1/p11", "app=a0", "", 0, 1},
		{"no key", "/pods/ns1/p99", "", "", 0, 0},
		{"a label", "/pods/", "app=a1", "", 50, 50},
		{"a label in a prefix", "/pods/ns1/", "app=a1", "", 10, 10},
		{"a set", "/pods/", "app in (a1,a0)", "", 101, 101},
		{"not", "/pods/", "app!=a1", "", 51, 101},
		{"a field, and what its index could not place", "/pods/", "", "spec.restartPolicy=r3", 5, 6},
		{"the field narrower than the label", "/pods/", "app=a1", "spec.restartPolicy=r3", 5, 6},
		{"a namespace", "/pods/", "", "metadata.namespace=ns2", 10, 101},
		{"the namespace of the prefix", "/pods/ns2/", "", "metadata.namespace=ns2", 10, 10},
		{"another namespace than that of the prefix", "/pods/ns3/", "", "metadata.namespace=ns2", 0, 10},
		{"no index", "/pods/", "", "metadata.name=p11", 1, 101},
	} {
		q := ask(t, tc.key, tc.label, tc.field)
		matches := 0
		looks := x.Scan(state.Latest(), &q, "", nil, func(*watchcache.Element) bool { matches++; return true }).Evaluated
		assert.Equal(t, tc.matches, matches, "%s: the elements that match", tc.name)
		assert.Equal(t, tc.looks, looks, "%s: the elements that were looked at", tc.name)
	}

	q := NewQuery("/pods/", true, storage.SelectionPredicate{Label: labels.Nothing()})
	assert.Zero(t, x.Scan(state.Latest(), &q, "", nil, nil).Evaluated, "the elements that the query of nothing looked at")
	q = ask(t, "/pods/", "app=a1", "")
	got, room := []string{}, 2
	x.Scan(state.Latest(), &q, "/pods/ns3/p20", func() bool { return room == 0 }, func(e *watchcache.Element) bool {
		room--
		got = append(got, e.Key)
		return true
	})
	assert.Equal(t, []string{"/pods/ns3/p23", "/pods/ns3/p33"}, got, "two from a key on")

	// Which of two long ranges is shorter shows only when more of them is counted.
	for i := range 700 {
		policy := "spec.restartPolicy=long"
		if i%7 > 0 {
			policy = "spec.restartPolicy=rest"
		}
		elements = append(elements, pod(fmt.Sprintf("ns1/more%d", i), uint64(300+i), "app=many", policy))
	}
	state.Replace(elements, 1000)
	for label, want := range map[string][2]int{
		"app=many,spec.restartPolicy=long": {100, 101}, // and the one that the index could not place
		"app=a1,spec.restartPolicy=rest":   {0, 50},
		"app=many,spec.restartPolicy=rest": {600, 601},
	} {
		label, field, _ := strings.Cut(label, ",")
		q, matches := ask(t, "/pods/", label, field), 0
		scanned := x.Scan(state.Latest(), &q, "", nil, func(*watchcache.Element) bool { matches++; return true })
		assert.Equal(t, want, [2]int{matches, scanned.Evaluated}, "%s and %s: matches, and elements that were looked at", label, field)
	}
}

// A failure of an indexer is told, with what it was for.
func TestFailedIndexer(t *testing.T) {
	var told []string
	failing := func(any) ([]string, error) { return nil, errors.New("no") }
	x := NewIndexes(Config{
		Prefix: "/pods/", Indexers: cache.Indexers{storage.LabelIndex("b"): failing, "a": failing}, Labels: []string{"c"},
		Failed: func(index, key string, err error) { told = append(told, index+" "+key+" "+err.Error()) },
	})
	assert.Equal(t, []string{"a", storage.LabelIndex("b"), storage.LabelIndex("c")}, x.Names())
	for _, index := range x.OfState() {
		index.Values(pod("a/one", 1), nil)
	}
	assert.ElementsMatch(t, []string{"a /pods/a/one no", storage.LabelIndex("b") + " /pods/a/one no"}, told)
}

func TestScopes(t *testing.T) {
	for key, want := range map[string]string{
		"/pods/a/one": "/pods/a/", "/pods/a/b/c": "/pods/a/ /pods/a/b/", "/pods/one": "", "/pods/": "", "/other/a/one": "",
		"/pods//one": "/pods//", "/pods/a/": "/pods/a/",
	} {
		var got []string
		podIndexes().scopesOf(key, func(prefix string) { got = append(got, prefix) })
		assert.Equal(t, want, strings.Join(got, " "), key)
	}
}

// Analysing and filing cost what they must and no more.
func TestAllocationsOfQueries(t *testing.T) {
	everything, label := ask(t, "/pods/", "", ""), ask(t, "/pods/", "app=a1", "")
	for _, tc := range []struct {
		name string
		p    storage.SelectionPredicate
		most float64
	}{{"everything", everything.predicate, 0}, {"a label", label.predicate, 2}} {
		assert.LessOrEqual(t, testing.AllocsPerRun(100, func() { NewQuery("/pods/", true, tc.p) }), tc.most, "%s: the allocations of a query", tc.name)
	}
}
