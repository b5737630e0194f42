// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher/delegator"
)

// shippedCache answers what the shipped cacher asks itself before it delegates
// a LIST: whether it has snapshots that show a version.
type shippedCache struct {
	state readState
	token int64 // the continue token's version
}

func (s shippedCache) ShouldDelegateExactRV(rv string, recursive bool) (delegator.Result, error) {
	if !recursive {
		return delegator.Result{ShouldDelegate: true}, nil
	}
	n, err := storage.APIObjectVersioner{}.ParseResourceVersion(rv)
	return s.exact(n), err
}

func (s shippedCache) exact(rv uint64) delegator.Result {
	if rv > s.state.rv {
		return delegator.Result{ShouldDelegate: !s.state.progress}
	}
	return delegator.Result{ShouldDelegate: !s.state.ready || rv < max(s.state.oldest, s.state.compacted)}
}

func (s shippedCache) ShouldDelegateContinue(_ string, recursive bool) (delegator.Result, error) {
	switch {
	case !recursive:
		return delegator.Result{ShouldDelegate: true}, nil
	case s.token > 0:
		return s.exact(uint64(s.token)), nil
	}
	return s.ShouldDelegateConsistentRead()
}

func (s shippedCache) ShouldDelegateConsistentRead() (delegator.Result, error) {
	return delegator.Result{ShouldDelegate: !s.state.progress, ConsistentRead: true}, nil
}

// listOptions are the case's options as storage gets them.
func (c decideCase) listOptions() storage.ListOptions {
	o := c.options()
	opts := storage.ListOptions{ResourceVersionMatch: o.match, Recursive: o.recursive}
	if !o.unset {
		opts.ResourceVersion = strconv.FormatUint(o.rv, 10)
	}
	opts.Predicate.Limit = o.limit
	if o.continues {
		opts.Predicate.Continue = "token"
	}
	if o.selective {
		opts.Predicate.Label = labels.SelectorFromSet(labels.Set{"a": "b"})
	}
	return opts
}

// shippedDecision is how k8s.io/apiserver v0.37.2 answers the case: it calls
// that module's decision about delegating, and follows its CacheDelegator and
// watchCache for what is not delegated.
func shippedDecision(t *testing.T, c decideCase, s readState) string {
	ready := s.ready && !s.stopped
	if c.verb == "get" {
		if c.rv == "unset" || !ready {
			return "delegate"
		}
		return "latest"
	}
	opts, o := c.listOptions(), c.options()
	result, err := delegator.ShouldDelegateList(opts, shippedCache{state: s, token: o.continueRV})
	switch {
	case err != nil:
		require.NoError(t, err, "%+v", c)
	case result.ShouldDelegate:
		return "delegate"
	case !ready && o.limit > 0 && !o.selective:
		return "delegate"
	case !ready:
		return "refuse"
	}
	limited := ""
	if o.limit > 0 && opts.ResourceVersion != "0" {
		limited = " limited"
	}
	switch {
	case !opts.Recursive && opts.ResourceVersionMatch == "" && o.unset:
		return "consistent" + limited
	case !opts.Recursive:
		return "latest" + limited
	case opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact:
		return "exact" + limited
	case opts.ResourceVersionMatch != "":
		return "latest" + limited
	case o.continues && o.continueRV > 0:
		return "continue" + limited
	case o.continues:
		return "consistent" + limited
	case limited != "" && !o.unset:
		return "exact" + limited
	case o.unset:
		return "consistent" + limited
	}
	return "latest" + limited
}

type difference struct {
	what  string
	cases func(decideCase) bool
}

// deliberate are the differences from the shipped cacher, each with the cases
// in which it shows. COMPATIBILITY.md has them for its readers.
var deliberate = []difference{
	{"a GET of the most recent version is served from the cache, not by storage", func(c decideCase) bool {
		return c.verb == "get" && c.rv == "unset" && c.progress == "progress" && c.gets == "cached" && c.ready == "ready"
	}},
	{"a stopped cache refuses what it would delegate if it were not ready", func(c decideCase) bool {
		return c.ready == "stopped"
	}},
	{"a LIST of one key at exactly one version is served from the cache, not by storage", func(c decideCase) bool {
		return c.scope == "key" && c.match == "Exact" && c.ready == "ready" && (c.rv == "held" || c.rv == "future" && c.progress == "progress")
	}},
	{"a LIST of one key at exactly one version is refused by a cache that is not ready, as other LISTs are", func(c decideCase) bool {
		return c.scope == "key" && c.match == "Exact" && c.ready == "cold" && c.progress == "progress"
	}},
	{"a LIST of one key with a limit and no match means not older than, as to storage, and is served from the cache", func(c decideCase) bool {
		return c.verb == "list" && c.scope == "key" && c.match == "-" && c.limit == "limit" && c.rv != "unset" && c.rv != "0" &&
			(c.ready == "ready" || c.all == "some")
	}},
	{"NotOlderThan without a version means the most recent one, as to storage, not any", func(c decideCase) bool {
		return c.match == "NotOlderThan" && c.rv == "unset" && c.next == "-" && (c.ready == "ready" || c.progress == "-")
	}},
	{"a continue token is followed whatever the match, as by storage: NotOlderThan does not begin the list again, Exact need not ask storage", func(c decideCase) bool {
		return c.match != "-" && c.next != "-"
	}},
}

// Reads are decided as the shipped cacher decides them, but for the
// differences in the list, all of which exist.
func TestDecideAgainstShipped(t *testing.T) {
	shown := make([]int, len(deliberate))
	same := 0
	for _, c := range allCases() {
		if c.trust == "doubtful" {
			continue // the shipped cacher knows of that for earlier versions only
		}
		s := c.state()
		if !s.ready {
			s.rv, s.oldest, s.compacted = 0, 0, 0 // nothing was listed yet
		}
		o := c.options()
		d := decide(&o, &s)
		ours := d.kind.String()
		if d.limited {
			ours += " limited"
		}
		shipped := shippedDecision(t, c, s)
		if ours == shipped {
			same++
			continue
		}
		which := slices.IndexFunc(deliberate, func(d difference) bool { return d.cases(c) })
		if !assert.GreaterOrEqual(t, which, 0, "%+v: ours %q, shipped %q, which is in no list", c, ours, shipped) {
			continue
		}
		shown[which]++
	}
	for i, n := range shown {
		assert.NotZero(t, n, "there is no such difference: %s", deliberate[i].what)
	}
	t.Logf("%d combinations are the same, others by difference: %v", same, shown)
}
