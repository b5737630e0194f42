// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// everySecond makes TestQuietNamespacesOutlastANoisyOne write 1,000 events in each
// second, and not in one of sixty. The window loses all of them either way.
var everySecond = flag.Bool("everysecond", false, "the noisy namespace writes 1,000 events in every second")

// quietClient watches one namespace, and comes and goes.
type quietClient struct {
	namespace string
	want      []string // what has happened in the namespace
	seen      int      // how many of these it was told of
	rv        string   // the last version that it knows
	watch     *podWatch
	resumed   int
}

// read takes what has come, which must be what has happened in the namespace.
func (q *quietClient) read(t *testing.T) {
	t.Helper()
	if q.watch == nil {
		return
	}
	got := received(q.watch)
	require.Equal(t, q.want[q.seen:], append([]string{}, got...), "the watch of %s from %s", q.namespace, q.rv)
	q.seen = len(q.want)
	if len(got) > 0 {
		last := got[len(got)-1]
		q.rv = last[slices.Index([]byte(last), '@')+1:]
	}
}

// In twenty minutes in which one namespace fills the window again and again, watches of 99
// others resume wherever they were, get what has happened there and nothing else, and
// are never told 410.
func TestQuietNamespacesOutlastANoisyOne(t *testing.T) {
	step := 60
	if *everySecond {
		step = 1
	}
	store := func() *memstore.Store { return newStore() }
	inBubble(t, store, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		random := rand.New(rand.NewPCG(16, 4))
		clients := make([]*quietClient, 99)
		for i := range clients {
			clients[i] = &quietClient{namespace: fmt.Sprintf("quiet-%d", i), rv: "1", want: []string{}}
		}
		noise := 0
		for second := range 1200 {
			if second%step == 0 {
				var rv uint64
				for range 1000 {
					rv = put(store, poddata.Pod(fmt.Sprintf("noisy/%d", noise%50)))
					noise++
				}
				synctest.Wait() // the cache has the events
				store.Compact(rv - uint64(random.IntN(1000)))
			}
			q := clients[random.IntN(len(clients))]
			if q.watch != nil || random.IntN(5) == 0 {
				change(store, q, random) // a client that is away comes back in time
			}
			elapse(time.Second)
			q.read(t)
			switch {
			case q.watch == nil:
				q.watch = watchPods(t, c, "/pods/"+q.namespace+"/", q.rv)
				q.resumed++
				q.read(t)
			case random.IntN(3) > 0:
				q.watch.cancel()
				q.watch = nil
			}
		}
		resumed := 0
		for _, q := range clients {
			q.read(t)
			resumed += q.resumed
		}
		totals := c.Status().Totals
		require.Greater(t, resumed, 300)
		require.Greater(t, totals.BeyondWindow, uint64(resumed/2))
		require.Zero(t, totals.Expired)
		t.Logf("%d events of the noisy namespace, %d watches, %d of them from beyond the window", noise, resumed, totals.BeyondWindow)

		all := watchPods(t, c, "/pods/", "1")
		expectReceived(t, all, "ERROR 410 Expired", "closed")
		noisy := watchPods(t, c, "/pods/noisy/", "1")
		expectReceived(t, noisy, "ERROR 410 Expired", "closed")
	}, func(config *cacher.Config) { config.EventsHistoryWindow = 10 * time.Second })
}

// change adds, changes or removes the pod of a quiet namespace.
func change(store *memstore.Store, q *quietClient, random *rand.Rand) {
	name := q.namespace + "/pod"
	exists := len(q.want) > 0 && q.want[len(q.want)-1][0] != 'D'
	kind := "ADDED"
	var rv uint64
	switch {
	case exists && random.IntN(3) == 0:
		kind, rv = "DELETED", store.Remove(poddata.Prefix+name)
	case exists:
		kind, rv = "MODIFIED", put(store, poddata.Pod(name))
	default:
		rv = put(store, poddata.Pod(name))
	}
	q.want = append(q.want, fmt.Sprintf("%s %s@%d", kind, name, rv))
}

// Watches by what is indexed, and of one object that is there, resume likewise; those
// of which something has left the window are told 410, an object that has left their
// selection included.
func TestWatchesThatResumeBeyondTheWindow(t *testing.T) {
	store := func() *memstore.Store {
		return newStore(poddata.Pod("a/stays", "spec.nodeName=n1", "app=1"), poddata.Pod("a/leaves", "spec.nodeName=n2", "app=2")) // 2, 3
	}
	inBubble(t, store, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		put(store, poddata.Pod("a/leaves", "spec.nodeName=n3", "app=3")) // 4
		for range 500 {
			put(store, poddata.Pod("a/noisy", "spec.nodeName=n3", "app=3"))
		}
		elapse(time.Minute)
		require.Greater(t, c.Status().OldestResourceVersion, uint64(300))
		const gone = "ERROR 410 Expired"
		for _, watch := range []struct {
			key, label, field string
			rv                int
			want              []string
		}{
			{"/pods/", "", "spec.nodeName=n1", 3, nil},
			{"/pods/", "", "spec.nodeName=n1", 2, []string{gone, "closed"}}, // before the list
			{"/pods/", "", "spec.nodeName=n2", 3, []string{gone, "closed"}},
			{"/pods/", "", "spec.nodeName=n2", 4, nil},
			{"/pods/", "", "spec.nodeName=n3", 4, []string{gone, "closed"}},
			{"/pods/", "app=1", "", 3, nil},
			{"/pods/", "app in (1,2)", "", 3, []string{gone, "closed"}},
			{"/pods/", "app in (1,2)", "", 4, nil},
			{"/pods/", "app!=3", "", 4, []string{gone, "closed"}}, // no equality
			{"/pods/a/", "app=3", "spec.nodeName=n1", 4, nil},
			{"/pods/b/", "", "", 3, nil},
			{"/pods/a/", "", "", 4, []string{gone, "closed"}},
			{"/pods/a/stays", "", "", 3, nil},
			{"/pods/a/leaves", "", "", 3, []string{gone, "closed"}},
			{"/pods/a/leaves", "", "", 4, nil},
			{"/pods/a/none", "", "", 4, []string{gone, "closed"}}, // it may have been there
		} {
			w := watchPods(t, c, watch.key, strconv.Itoa(watch.rv), selecting(watch.label, watch.field), func(o *storage.ListOptions) {
				o.Recursive = watch.key[len(watch.key)-1] == '/'
			})
			got := received(w)
			require.Equal(t, watch.want, got, "%+v", watch)
			w.cancel()
		}
	}, func(config *cacher.Config) {
		config.EventsHistoryWindow, config.LabelIndexes, config.IndexerFuncs = 10*time.Second, []string{"app"}, poddata.Triggers()
	})
}

// A watch whose client does not read outlasts the window as long as nothing of its
// namespace has left it, and is told 410 then.
func TestQuietWatchIsParkedBeyondTheWindow(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		for i := range 2 {
			synctest.Wait()
			rv := c.Status().ResourceVersion
			w := watchPods(t, c, "/pods/quiet/", strconv.FormatUint(rv, 10))
			synctest.Wait()
			for range 3 { // one more than the channel and the replayer's hands hold
				put(store, poddata.Pod("quiet/pod"+strconv.Itoa(i)))
			}
			elapse(2 * time.Second)
			require.Equal(t, 1, c.Status().Watches.Parked, "it is parked")
			for range 500 {
				put(store, poddata.Pod("noisy/pod"))
			}
			if i == 1 {
				put(store, poddata.Pod("quiet/pod1"))
				for range 500 {
					put(store, poddata.Pod("noisy/pod"))
				}
			}
			elapse(time.Minute)
			var got []string
			for more := received(w); len(more) > 0 && !slices.Contains(got, "closed"); more = received(w) {
				got = append(got, more...)
			}
			if i == 1 {
				require.Equal(t, "closed", got[len(got)-1])
				require.Equal(t, "ERROR 410 Expired", got[len(got)-2])
				continue
			}
			require.Len(t, got, 3)
			put(store, poddata.Pod("quiet/pod0"))
			elapse(time.Second)
			require.Len(t, received(w), 1)
			require.Equal(t, 1, c.Status().Watches.Live)
			w.cancel()
		}
		require.Positive(t, c.Status().Totals.BeyondWindow)
	}, func(config *cacher.Config) {
		config.EventsHistoryWindow, config.WatchBuffer = 10*time.Second, 1
	})
}

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
