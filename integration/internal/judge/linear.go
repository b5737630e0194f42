// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// Verb is what an operation on a key does.
type Verb string

// The verbs.
const (
	Get    Verb = "get" // also what a consistent LIST says of a key
	Create Verb = "create"
	Patch  Verb = "patch"  // of whatever there is
	Put    Verb = "put"    // whether there is something or not
	Update Verb = "update" // of the version Op.Expect alone
	Delete Verb = "delete" // of the version Op.Expect alone
)

// Outcome is what an operation was told.
type Outcome string

// The outcomes.
const (
	OK       Outcome = "ok"
	NotFound Outcome = "not found"
	Exists   Outcome = "already exists"
	Conflict Outcome = "conflict"
	// Unanswered writes may have been applied, at any time after they began.
	Unanswered Outcome = "unanswered"
)

// Op is one operation on one key. Times are since any moment, the same for all.
type Op struct {
	Client       int
	Verb         Verb
	Key          string
	Expect       int64  // the version that Update and Delete are for
	Content      string // that is written; of a Get, that was found
	Call, Return time.Duration
	Outcome      Outcome
	RV           int64 // that was told; of an OK deletion none is
}

// register is the state of one key.
type register struct {
	there   bool
	rv      int64 // of the last write
	content string
}

// step tells whether the operation may have had its outcome in this state, and
// what the state is after that.
func (r register) step(op Op) (bool, register) {
	current := r.there && r.rv == op.Expect
	written := register{there: true, rv: op.RV, content: op.Content}
	switch op.Outcome {
	case NotFound:
		return !r.there, r
	case Exists:
		return r.there, r
	case Conflict:
		return !current, r
	case Unanswered: // only deletions are left without an answer, see settle
		if current {
			return true, register{rv: r.rv}
		}
		return true, r
	case OK:
	}
	switch op.Verb {
	case Get:
		return r.there && r.rv == op.RV && r.content == op.Content, r
	case Create:
		return !r.there && op.RV > r.rv, written
	case Patch:
		return r.there && op.RV > r.rv, written
	case Put:
		return op.RV > r.rv, written
	case Update:
		return current && op.RV > r.rv, written
	case Delete:
		return current, register{rv: r.rv}
	}
	return false, r
}

var model = porcupine.Model{
	Init: func() any { return register{} },
	Step: func(state, input, _ any) (bool, any) {
		ok, next := state.(register).step(input.(Op))
		return ok, next
	},
	DescribeOperation: func(input, _ any) string {
		op := input.(Op)
		return fmt.Sprintf("%s expect=%d %q: %s %d", op.Verb, op.Expect, op.Content, op.Outcome, op.RV)
	},
	DescribeState: func(state any) string { return fmt.Sprintf("%+v", state) },
}

// Linearizable looks for an order of the operations on each key that explains
// every answer. The search of one key may take bound; one that takes longer is a
// violation, too, as nothing was shown. draw, unless nil, is given a picture of
// each key that has no such order: a function that writes it to a path.
func Linearizable(h *History, began time.Time, ops []Op, bound time.Duration, draw func(key string, write func(path string) error)) (found Violations) {
	byKey := map[string][]Op{}
	for _, op := range settle(h, began, ops) {
		byKey[op.Key] = append(byKey[op.Key], op)
	}
	keys := make([]string, 0, len(byKey))
	for key := range byKey {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	for _, key := range keys {
		operations := make([]porcupine.Operation, len(byKey[key]))
		for i, op := range byKey[key] {
			operations[i] = porcupine.Operation{ClientId: op.Client, Input: op, Call: int64(op.Call), Output: op.Outcome, Return: int64(op.Return)}
		}
		result, info := porcupine.CheckOperationsVerbose(model, operations, bound)
		switch result {
		case porcupine.Ok:
			continue
		case porcupine.Unknown:
			found.Add(Linear, "%s: not decided in %v for %d operations", key, bound, len(operations))
		case porcupine.Illegal:
			found.Add(Linear, "%s: no order of the %d operations explains them", key, len(operations))
		}
		if draw != nil {
			draw(key, func(path string) error { return porcupine.VisualizePath(model, info, path) })
		}
	}
	return found
}

// settle finds out from etcd's history what became of writes that were not
// answered. Those that etcd has were applied by the time at which the history
// heard of them, under the version that it has; those that etcd does not have
// were never applied, and are left out. So are reads without an answer.
func settle(h *History, began time.Time, ops []Op) []Op {
	byContent, deletions := map[string]*Change{}, map[string]map[int64]*Change{}
	for _, c := range h.changes {
		switch {
		case !c.Deleted:
			byContent[c.Content] = c
		case c.Before != nil:
			if deletions[c.Key] == nil {
				deletions[c.Key] = map[int64]*Change{}
			}
			deletions[c.Key][c.Before.Rev] = c
		}
	}
	out := make([]Op, 0, len(ops))
	for _, op := range ops {
		if op.Outcome != Unanswered {
			out = append(out, op)
			continue
		}
		switch op.Verb {
		case Get:
		case Delete:
			if c := deletions[op.Key][op.Expect]; c != nil {
				op.Return = max(op.Call, c.Seen.Sub(began))
				out = append(out, op)
			}
		case Create, Patch, Put, Update:
			if c := byContent[op.Content]; c != nil && c.Key == op.Key {
				op.Outcome, op.RV, op.Return = OK, c.Rev, max(op.Call, c.Seen.Sub(began))
				out = append(out, op)
			}
		}
	}
	return out
}
