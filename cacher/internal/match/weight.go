// SPDX-License-Identifier: Apache-2.0

package match

import (
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// Clients choose the selectors of their queries. The weight of a query bounds what one
// evaluation costs, whatever the event: it is the number of requirements, of values that they
// compare with, and of 64-byte pieces of text. A weight of 1 takes about 20 ns.
const (
	// MaxRequirements is how many requirements the selectors of a request may have.
	MaxRequirements = 10_000
	// large is the weight above which the dispatcher does not evaluate a query without limit.
	large = 32
	// maxDispatched bounds the sum of the weights of the large queries that are filed, which
	// the dispatcher evaluates for every event.
	maxDispatched = 4096
	// heavy is the weight above which queries share no group, because two of them are compared
	// under the caller's lock, and above which reads take turns.
	heavy = 512
	// maxInterest is the largest weight of the values in an Interest, which are looked up
	// under the state's lock.
	maxInterest = 64
)

// Requirements returns how many requirements a predicate's selectors have.
func Requirements(p *storage.SelectionPredicate) (n int) {
	if p.Field != nil && !p.Field.Empty() {
		n = len(p.Field.Requirements())
	}
	if p.Label != nil {
		requirements, _ := p.Label.Requirements()
		n += len(requirements)
	}
	if p.ShardSelector != nil {
		n += len(p.ShardSelector.Requirements())
	}
	return n
}

// weight returns the weight of a text beside that of its conditions.
func weight(text string) int { return len(text) / 64 }

// turn has room for one goroutine of the process, so that large queries of whatever clients
// take one core from everybody else at most.
var turn = make(chan struct{}, 1)

// Heavy reports whether reads of the query take turns.
func (q *Query) Heavy() bool { return q.terms > heavy }

// matchesInTurn is matches, for reads.
func (q *Query) matchesInTurn(e *watchcache.Element) bool {
	if q.Heavy() {
		turn <- struct{}{}
		defer func() { <-turn }()
	}
	return q.matches(e)
}

// Outcomes writes the outcomes of events above the resourceVersion after, for a watcher that
// the dispatcher does not feed. It leaves a large query's outcomes Unaffected once ended
// returns true.
func (g *Group[M]) Outcomes(outcomes []Outcome, events []*watchcache.Event, after uint64, ended func() bool) {
	isLarge := g.weight > large
	if isLarge {
		turn <- struct{}{}
		defer func() { <-turn }()
	}
	for i, e := range events {
		outcomes[i] = Unaffected
		if e.RV > after && !(isLarge && ended()) {
			outcomes[i] = g.Outcome(e, isLarge && Alike(e))
		}
	}
}
