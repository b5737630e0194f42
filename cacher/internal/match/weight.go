// SPDX-License-Identifier: Apache-2.0

package match

import (
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// Clients choose the selectors of their queries. A query's weight, which bounds the cost of one
// evaluation, is the number of requirements, of values compared, and of 64-byte pieces of text. A
// weight of 1 takes about 20 ns.
const (
	// MaxRequirements is the most requirements that the selectors of a request may have.
	MaxRequirements = 10_000
	// large is the weight above which the dispatcher limits evaluation.
	large = 32
	// maxDispatched bounds the total weight of the large filed queries, which the dispatcher
	// evaluates for every event.
	maxDispatched = 4096
	// heavy is the weight above which reads take turns, and queries share no group, because
	// comparing them under the caller's lock takes too long.
	heavy = 512
	// maxInterest bounds the weight of an Interest's values, which are looked up under the state's
	// lock.
	maxInterest = 64
)

// Requirements returns the number of requirements in a predicate's selectors.
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

func weight(text string) int { return len(text) / 64 }

// turn admits one goroutine, so that all clients' large queries together use at most one core.
var turn = make(chan struct{}, 1)

// Heavy reports whether reads of the query take turns.
func (q *Query) Heavy() bool { return q.terms > heavy }

func (q *Query) matchesInTurn(e *watchcache.Element) bool {
	if q.Heavy() {
		turn <- struct{}{}
		defer func() { <-turn }()
	}
	return q.matches(e)
}

// Outcomes writes the outcomes of events above version after, for a watcher not fed by the
// dispatcher. Once ended returns true, a large query's outcomes stay Unaffected.
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
