// SPDX-License-Identifier: Apache-2.0

package beside

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// step is one thing that happens. It asks the run for all that it needs of earlier steps.
type step interface {
	fmt.Stringer
	do(*run)
}

// run is two sides over one etcd, and what has become of the steps so far.
type run struct {
	ctx   context.Context
	sides [2]*side // ours, shipped
	etcd  *clientv3.Client
	keys  *keyring

	noted       []int64 // etcd's revision at the beginning and after each write
	variant     int     // of the definition
	compacted   int64
	lost        bool // keys, so that objects can't be read
	disturbed   bool // an object that can't be read was written or deleted
	restarted   [2]bool
	began       [2]int64 // etcd's revision
	watches     []*pair
	marks       int
	differences []string
	*counts
}

// counts are those of all runs of a test.
type counts struct {
	requests atomic.Int64
	mu       sync.Mutex
	ruled    map[string]int
}

const (
	ours    = 0
	shipped = 1
)

func newRun(t *testing.T, n *counts) *run {
	t.Helper()
	etcd, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir(), UnsafeNoFsync: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, etcd.Close()) })
	client, err := clientv3.New(clientv3.Config{Endpoints: etcd.Endpoints()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	r := &run{ctx: context.Background(), etcd: client, keys: &keyring{}, counts: n}
	r.keys.rotate()
	for i, name := range []string{"ours", "shipped"} {
		r.sides[i] = &side{name: name, ours: i == ours, etcd: etcd.Endpoints(), keys: r.keys}
		r.sides[i].start(r)
		t.Cleanup(func() { r.sides[i].stop() })
	}
	r.ask(shipped, writing(http.MethodPost, definitions, "", "", definition(0)))
	r.reset()
	return r
}

// Errorf and FailNow make a run what require takes: a failure ends the steps of the run, not
// the test.
func (r *run) Errorf(format string, args ...any) {
	r.differences = append(r.differences, fmt.Sprintf(format, args...))
}

func (r *run) FailNow() { panic(failure(strings.Join(r.differences, "\n"))) }

type failure string

// reset ends all watches and removes all objects, so that the next program begins with
// nothing.
func (r *run) reset() {
	r.closeWatches()
	r.noted, r.differences, r.restarted = nil, nil, [2]bool{}
	r.restore()
	r.disturbed = false
	for _, of := range resources {
		_, err := r.etcd.Delete(r.ctx, r.prefix(of), clientv3.WithPrefix())
		require.NoError(r, err)
	}
	r.define(0)
}

func (r *run) closeWatches() {
	for _, p := range r.watches {
		p.close()
	}
	r.watches = nil
}

func (r *run) prefix(of *resource) string { return "/registry/" + of.group + "/" + of.plural + "/" }

// note notes etcd's revision.
func (r *run) note() {
	response, err := r.etcd.Get(r.ctx, "/none", clientv3.WithCountOnly())
	require.NoError(r, err)
	r.noted = append(r.noted, response.Header.Revision)
}

// ask asks one side.
func (r *run) ask(side int, q *request) *answer {
	a, err := r.sides[side].ask(r.ctx, q)
	require.NoError(r, err)
	return a
}

// askBoth asks both sides and compares the answers. A side gets the continue token that
// is its own. A read of any age is repeated until both have caught up with the last write,
// and one without a version while keys are lost: a late one goes to etcd, which can't answer.
func (r *run) askBoth(s fmt.Stringer, q *request, tokens [2]string) ([2]*answer, bool) {
	r.requests.Add(1)
	repeated := tokens == [2]string{} && q.method == http.MethodGet && (r.lost || q.query.Get("resourceVersion") != "") && q.query.Get("resourceVersionMatch") != "Exact"
	for deadline := time.Now().Add(patience / 6); ; {
		c := &comparison{run: r, request: q, tokens: tokens}
		var errs [2]error
		var both sync.WaitGroup
		for i, side := range r.sides {
			both.Go(func() {
				c.answers[i], errs[i] = side.ask(r.ctx, q.with(map[string]string{"continue": tokens[i]}))
			})
		}
		both.Wait()
		require.NoError(r, errors.Join(errs[:]...))
		if repeated && time.Now().Before(deadline) && c.difference() != "" && !c.ruled() {
			continue
		}
		return c.answers, c.judge(s)
	}
}

// write changes an object through one side, after both have answered a dry run of it. A
// removal goes to etcd, as if another server deleted the object.
type write struct {
	side     int
	resource *resource
	verb     string
	thing    thing
	text     string
}

func drawWrite(d *rand.Rand) step {
	s := &write{side: d.IntN(2), resource: pick(d, resources), thing: thing{namespace: pick(d, namespaces), name: pick(d, names), color: pick(d, colors)}, text: strconv.Itoa(d.IntN(1000)),
		verb: pick(d, []string{"create", "create", "create", "create", "patch", "patch", "patch", "patch", "nothing", "delete", "delete", "delete stale", "replace stale", "remove"})}
	s.thing.value = pick(d, s.resource.values)
	return s
}

func (s *write) String() string {
	return fmt.Sprintf("%s %s %+v %q through %d", s.verb, s.resource.plural, s.thing, s.text, s.side)
}

func (s *write) do(r *run) {
	r.disturbed = r.disturbed || r.lost
	if s.verb == "remove" {
		_, err := r.etcd.Delete(r.ctx, r.prefix(s.resource)+s.thing.namespace+"/"+s.thing.name)
		require.NoError(r, err)
		r.note()
		return
	}
	body := s.thing.object(s.resource, s.text, nil)
	q := writing(http.MethodPatch, s.resource, s.thing.namespace, s.thing.name, body)
	switch s.verb {
	case "create":
		q.method, q.path = http.MethodPost, s.resource.path(0, s.thing.namespace, "")
	case "nothing":
		q.body = object{}
	case "delete":
		q.method, q.body = http.MethodDelete, nil
	case "delete stale":
		q.method, q.body = http.MethodDelete, object{"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": object{"resourceVersion": "1"}}
	case "replace stale":
		q.method = http.MethodPut
		body["metadata"].(object)["resourceVersion"] = "1"
	}
	r.askBoth(s, q.with(map[string]string{"dryRun": "All"}), [2]string{})
	r.ask(s.side, q)
	r.note()
}

// change is something that happens to the servers, their etcd or the clients.
type change struct {
	what string
	n    int
}

func drawOf(of ...string) func(*rand.Rand) step {
	return func(d *rand.Rand) step { return &change{pick(d, of), d.IntN(12)} }
}

func (s *change) String() string { return fmt.Sprintf("%s %d", s.what, s.n) }

func (s *change) do(r *run) {
	switch s.what {
	case "look at the watches":
		r.look(s)
	case "let clients move":
		r.move(s)
	case "define":
		r.define(s.n % 4)
	case "rotate keys":
		r.keys.rotate()
	case "lose keys":
		r.catchUp()
		r.keys.rotate()
		r.keys.keep(1)
		r.lost = true
	case "restore keys":
		r.restore()
	case "compact":
		if at := r.noted[max(0, len(r.noted)-1-s.n)]; at > r.compacted {
			_, err := r.etcd.Compact(r.ctx, at)
			require.NoError(r, err)
			r.compacted = at
		}
	case "restart":
		r.restore() // a server that can't read its objects does not begin
		r.sides[s.n%2].stop()
		r.sides[s.n%2].start(r)
		r.note()
		r.restarted[s.n%2], r.began[s.n%2] = true, r.noted[len(r.noted)-1]
		r.await()
	}
}

// restore makes all objects readable again.
func (r *run) restore() {
	if r.lost {
		r.keys.keep(len(r.keys.keys))
		r.lost = false
		r.await()
	}
}

// catchUp waits until both caches have all that was written: an event that came to one of
// them only after the keys are lost could not be decoded there.
func (r *run) catchUp() {
	for i := 0; !r.lost && i < len(r.sides)*len(resources); i++ {
		of := resources[i/2]
		q := &request{resource: of, user: administrator, method: http.MethodGet, path: of.path(0, "", ""), accept: asJSON}
		has := func(version string) string {
			return encode(items(decodeList(r.ask(i%2, q.with(map[string]string{"resourceVersion": version})))))
		}
		for deadline := time.Now().Add(patience / 2); has("0") != has(""); {
			require.True(r, time.Now().Before(deadline), "%s does not get the last writes of %s", r.sides[i%2].name, of.plural)
		}
	}
}

// define puts a variant of the definition into force on both sides.
func (r *run) define(variant int) {
	if r.variant != variant {
		r.restore() // a new cache can't begin either
		a := r.ask(shipped, writing(http.MethodPatch, definitions, "", "pandas."+zoo, object{"spec": definition(variant)["spec"]}))
		require.Equal(r, http.StatusOK, a.status, "the definition is refused: %s", a.body)
		r.variant = variant
		for _, p := range r.watches {
			p.redefined = p.redefined || p.step.resource == pandas
		}
	}
	r.note()
	r.await()
}

// await waits until both sides default as the definition says, and serve reads.
func (r *run) await() {
	home := fmt.Sprintf(`"home %d"`, r.variant)
	probe := writing(http.MethodPost, pandas, "a", "", thing{"a", "probe", "", "bamboo"}.object(pandas, "", nil)).with(map[string]string{"dryRun": "All"})
	ready := func(side int) bool {
		for _, of := range resources {
			for served := range of.versions {
				q := &request{resource: of, user: administrator, method: http.MethodGet, path: of.path(served, "", ""), accept: asJSON}
				if a := r.ask(side, q.with(map[string]string{"resourceVersion": "0"})); a.status != http.StatusOK {
					return false
				}
			}
		}
		a := r.ask(side, probe)
		return a.status == http.StatusCreated && strings.Contains(string(a.body), home)
	}
	for i, side := range r.sides {
		for deadline := time.Now().Add(patience / 2); !ready(i); {
			require.True(r, time.Now().Before(deadline), "%s does not serve variant %d of the definition", side.name, r.variant)
		}
	}
}
