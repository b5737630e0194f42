// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// broken is a storage that keeps every rule but one. A rule whose field is nil
// is kept.
type broken struct {
	memory
	watch    func(m memory, ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error)
	list     func(m memory, ctx context.Context, key string, opts storage.ListOptions, out runtime.Object) error
	get      func(m memory, ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error
	create   func(m memory, ctx context.Context, key string, obj, out runtime.Object) error
	update   func(m memory, ctx context.Context, key string, out runtime.Object, update storage.UpdateFunc, suggestion runtime.Object) error
	current  func(m memory, ctx context.Context) (uint64, error)
	progress func(m memory, ctx context.Context) error
}

// Watch implements storage.Interface.
func (b broken) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if b.watch == nil {
		return b.memory.Watch(ctx, key, opts)
	}
	return b.watch(b.memory, ctx, key, opts)
}

// GetList implements storage.Interface.
func (b broken) GetList(ctx context.Context, key string, opts storage.ListOptions, out runtime.Object) error {
	if b.list == nil {
		return b.memory.GetList(ctx, key, opts, out)
	}
	return b.list(b.memory, ctx, key, opts, out)
}

// Get implements storage.Interface.
func (b broken) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	if b.get == nil {
		return b.memory.Get(ctx, key, opts, out)
	}
	return b.get(b.memory, ctx, key, opts, out)
}

// Create implements storage.Interface.
func (b broken) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if b.create == nil {
		return b.memory.Create(ctx, key, obj, out, ttl)
	}
	return b.create(b.memory, ctx, key, obj, out)
}

// GuaranteedUpdate implements storage.Interface.
func (b broken) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, suggestion runtime.Object) error {
	if b.update == nil {
		return b.memory.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update, suggestion)
	}
	return b.update(b.memory, ctx, key, out, update, suggestion)
}

// GetCurrentResourceVersion implements storage.Interface.
func (b broken) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	if b.current == nil {
		return b.memory.GetCurrentResourceVersion(ctx)
	}
	return b.current(b.memory, ctx)
}

// RequestWatchProgress implements storage.Interface.
func (b broken) RequestWatchProgress(ctx context.Context) error {
	if b.progress == nil {
		return b.memory.RequestWatchProgress(ctx)
	}
	return b.progress(b.memory, ctx)
}

// breach is a storage that breaks a rule.
type breach struct {
	// found says by which clauses it must be found, and what each says of it,
	// in part.
	found map[string]string
	make  func() broken
}

// TestBreachesAreFound breaks each rule of ours in at least one way, and
// demands that its clause fails, and says what is wrong and which rule that
// breaks.
func TestBreachesAreFound(t *testing.T) {
	tried := map[string]bool{}
	for name, breach := range breaches() {
		for clause := range breach.found {
			tried[clause] = true
		}
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			findBreach(t, breach)
		})
	}
	for _, g := range ours() {
		for _, c := range g.clauses {
			assert.True(t, tried[g.name+"/"+c.name], "no breach of %s/%s is tried", g.name, c.name)
		}
	}
}

// findBreach declares the breach as a deviation: then the clause must fail in
// a process of its own, and what it said there is read.
func findBreach(t *testing.T, breach breach) {
	r := &runner{test: t.Name()}
	rules := map[string]string{}
	deviations := map[string]string{}
	for _, g := range ours() {
		var wanted []clause
		for _, c := range g.clauses {
			if name := g.name + "/" + c.name; breach.found[name] != "" {
				wanted = append(wanted, c)
				rules[name], deviations[name] = c.rule, "broken on purpose"
			}
		}
		r.all = append(r.all, group{g.name, wanted})
	}
	require.Len(t, rules, len(breach.found), "one of these is no clause: %v", breach.found)
	r.open = func(*testing.T) Backend {
		storage := breach.make()
		b := storage.backend(storage)
		b.Patience, b.Deviations = brokenPatience, deviations
		return b
	}
	r.judgeAll(t)
	if strings.HasPrefix(os.Getenv(childOf), t.Name()) {
		return
	}
	for clause, rule := range rules {
		require.Contains(t, r.mu.output[clause], breach.found[clause])
		require.Contains(t, r.mu.output[clause], clause+" is broken. The rule: "+rule)
	}
}

// brokenPatience bounds the wait for what a broken storage never does.
const brokenPatience = 2 * time.Second
