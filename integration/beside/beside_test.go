// SPDX-License-Identifier: Apache-2.0

package beside

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/integration/internal/longform"
)

var (
	requests = flag.Int64("requests", 5000, "how many requests to ask of both sides, unless E2E_DURATION says for how long")
	pairs    = flag.Int("pairs", 3, "how many pairs of servers are asked at a time")
)

// enough requests use each rule.
const enough = 50_000

func TestMain(m *testing.M) {
	flag.Parse()
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// program draws steps. Programs differ in what they do most.
func program(seed uint64) []step {
	d := rand.New(rand.NewPCG(seed, 0))
	draws := []func(*rand.Rand) step{drawWrite, drawRead, drawWatch, drawOf("look at the watches"), drawOf("let clients move"),
		drawOf("define", "define", "rotate keys", "lose keys", "lose keys", "restore keys", "compact", "compact", "restart")}
	var bag []func(*rand.Rand) step
	for i, n := range []int{10 + d.IntN(30), 30 + d.IntN(60), 2 + d.IntN(8), 1 + d.IntN(4), d.IntN(2), d.IntN(4)} {
		bag = append(bag, slices.Repeat(draws[i:i+1], n)...)
	}
	var steps []step
	for range 20 {
		steps = append(steps, drawWrite(d))
	}
	for range 150 {
		steps = append(steps, pick(d, bag)(d))
	}
	return append(steps, &change{what: "look at the watches"})
}

// perform does the steps up to the first difference or failure, which it returns.
func (r *run) perform(steps []step) (found []string) {
	defer func() {
		switch failed := recover().(type) {
		case nil:
		case failure:
			found = []string{string(failed)}
		default:
			panic(failed)
		}
	}()
	r.reset()
	var changes []string
	for _, s := range steps {
		if c, ok := s.(*change); ok {
			changes = append(changes, fmt.Sprintf("%s (%d)", c, r.noted[len(r.noted)-1]))
		}
		if s.do(r); len(r.differences) > 0 {
			return append(r.differences, fmt.Sprintf("after %q, at %s", changes, s))
		}
	}
	return nil
}

// The same requests to both caches have the same answers.
func TestBeside(t *testing.T) {
	n := &counts{ruled: map[string]int{}}
	first := uint64(1)
	more := func() bool { return n.requests.Load() < *requests }
	if asked, long := longform.Form("beside").Asked(t); long {
		t.Log(asked.Again)
		first = asked.Seed
		deadline := time.Now().Add(asked.Duration)
		more = func() bool { return time.Now().Before(deadline) }
	}
	var seed atomic.Uint64
	seed.Store(first - 1)
	var group sync.WaitGroup
	for range *pairs {
		r := newRun(t, n)
		group.Go(func() {
			for more() && !t.Failed() {
				s := seed.Add(1)
				for _, difference := range r.perform(program(s)) {
					assert.Fail(t, difference, "seed %d", s)
				}
			}
		})
	}
	group.Wait()
	t.Logf("%d requests to both, seeds %d to %d; differences with a rule: %v", n.requests.Load(), first, seed.Load(), n.ruled)
	if n.requests.Load() >= enough && !t.Failed() {
		for _, rule := range rules {
			assert.True(t, rule.directed || n.ruled[rule.row] > 0, "no request has used the rule: %s", rule.row)
		}
	}
}

// All combinations of the options of LIST and WATCH have the same answers. Versions to come
// are not among them: both sides wait for seconds.
func TestOptions(t *testing.T) {
	r := newRun(t, &counts{ruled: map[string]int{}})
	for _, name := range names {
		r.mark(devices, thing{"a", name, "", "east"})
	}
	s := &watch{read{request: &request{resource: devices, method: http.MethodGet, path: devices.path(0, "", ""), user: administrator, accept: asJSON}, match: thing{"a", "m", "", "east"}}}
	answers, ok := r.askBoth(s, s.with(map[string]string{"limit": "2"}), [2]string{})
	require.True(t, ok, r.differences)
	current, old := fmt.Sprint(r.noted[len(r.noted)-1]), fmt.Sprint(r.noted[len(r.noted)-4])
	all := [][]string{
		{"watch", "", "true"},
		{"resourceVersion", "", "0", old, current, "x"},
		{"resourceVersionMatch", "", "NotOlderThan", "Exact", "Other"},
		{"limit", "", "1", "500", "-1"},
		{"continue", "", at(decodeList(answers[shipped]), "metadata", "continue"), "x"},
		{"sendInitialEvents", "", "true", "false"},
		{"allowWatchBookmarks", "", "true"},
		{"timeoutSeconds", "", "-1", "9223372036854775807"},
	}
	r.combine(s, all, map[string]string{})
	r.look(s)
	r.closeWatches()
	for range 2 { // one of two watches has its first event encoded by the other
		q := s.with(map[string]string{"watch": "true", "resourceVersion": fmt.Sprint(r.noted[len(r.noted)-1])})
		q.accept = asTable
		r.watches = append(r.watches, r.watchBoth(s, q))
	}
	for range 2 {
		r.look(s)
	}
	for _, rule := range rules {
		assert.True(t, !rule.directed || r.ruled[rule.row] > 0, "the rule was not used: %s", rule.row)
	}
	assert.Empty(t, r.differences)
	t.Logf("%d requests to both; differences with a rule: %v", r.requests.Load(), r.ruled)
}

// combine asks for each combination of the options with the values.
func (r *run) combine(s *watch, options [][]string, values map[string]string) {
	if len(options) > 0 {
		for _, value := range options[0][1:] {
			values[options[0][0]] = value
			r.combine(s, options[1:], values)
		}
		return
	}
	q := s.with(values)
	if values["watch"] == "" {
		r.askBoth(s, q, [2]string{})
	} else if p := r.watchBoth(s, q); p != nil {
		r.watches = append(r.watches, p)
	}
	if len(r.watches) == 100 {
		r.look(s)
		r.closeWatches()
	}
}
