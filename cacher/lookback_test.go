// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// changed is what a store did to a pod.
type changed struct {
	rv            uint64
	key           string
	before, after *example.Pod // nil: there is none
}

// shows returns the watch event that the change is to those who select so, under a
// key prefix, which ends with "/" as each key does then; "" if none.
func (c changed) shows(prefix string, p *storage.SelectionPredicate) string {
	selects := func(pod *example.Pod) bool {
		if pod == nil || !strings.HasPrefix(c.key+"/", prefix) {
			return false
		}
		matches, err := p.Matches(pod)
		return err == nil && matches
	}
	kind := ""
	switch before, after := selects(c.before), selects(c.after); {
	case before && after:
		kind = "MODIFIED"
	case after:
		kind = "ADDED"
	case before:
		kind = "DELETED"
	default:
		return ""
	}
	return fmt.Sprintf("%s %s@%d", kind, c.key[len("/pods/"):], c.rv)
}

// churn changes some pods at random, n times.
func churn(random *rand.Rand, store *memstore.Store, present map[string]*example.Pod, n int) (changes []changed) {
	for range n {
		name := fmt.Sprintf("%c/%d", 'a'+random.IntN(3), random.IntN(20))
		c := changed{key: "/pods/" + name, before: present[name]}
		if c.before != nil && random.IntN(4) == 0 {
			delete(present, name)
			c.rv = store.Remove(c.key)
		} else {
			c.after = poddata.Pod(name, fmt.Sprintf("app=%d", random.IntN(5)), fmt.Sprintf("spec.nodeName=n%d", random.IntN(4)))
			present[name] = c.after
			c.rv = store.Put(c.key, c.after.DeepCopy())
		}
		changes = append(changes, c)
	}
	return changes
}

// Watches that resume far back get what they select of all that has happened since,
// whatever they select by, while more happens; the next ones as well as the first.
func TestResumeFarBack(t *testing.T) {
	store, present := newStore(), map[string]*example.Pod{}
	c := start(t, store, func(config *cacher.Config) {
		config.IndexerFuncs = poddata.Triggers()
		config.FreshnessTimeout = patience // a busy machine may take long for the changes
	})
	random := rand.New(rand.NewPCG(1, 2))
	changes := churn(random, store, present, 3000)
	last := changes[len(changes)-1].rv
	expectList(t, c, "/pods/none/", strconv.FormatUint(last, 10), fmt.Sprintf("@%d", last))

	type asked struct {
		prefix, label, field string
		from                 int // the first change that is for the watch
	}
	var watches []*podWatch
	var asks []asked
	for round := range 6 {
		for _, a := range []asked{
			{prefix: "/pods/"}, {prefix: "/pods/b/"}, {prefix: "/pods/a/1/"}, {"/pods/", "app=3", "", 0}, {"/pods/c/", "app in (1,4)", "", 0},
			{"/pods/", "app!=2", "", 0}, {"/pods/", "", "spec.nodeName=n1", 0}, {"/pods/", "app=1", "metadata.name=7", 0}, {"/pods/", "", "spec.nodeName=none", 0},
		} {
			a.from = random.IntN(2900) / (1 + 100*(round%2)) // near the beginning, every other time
			since := changes[a.from].rv - 1
			one := strings.Count(a.prefix, "/") == 4
			key := a.prefix
			if one {
				key = strings.TrimSuffix(key, "/")
			}
			watches = append(watches, watchPods(t, c, key, strconv.FormatUint(since, 10), selecting(a.label, a.field), func(o *storage.ListOptions) {
				o.Recursive = !one
			}))
			asks = append(asks, a)
		}
	}
	changes = append(changes, churn(random, store, present, 500)...)
	for i, w := range watches {
		p := poddata.Predicate(asks[i].label, asks[i].field)
		for _, change := range changes[asks[i].from:] {
			if want := change.shows(asks[i].prefix, &p); want != "" {
				require.Equal(t, want, w.next(), "watch %d, of %+v", i, asks[i])
			}
		}
	}
}
