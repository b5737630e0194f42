// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"
)

// kind is what a handler was told.
type kind string

const (
	toldAdd    kind = "add"
	toldUpdate kind = "update"
	toldDelete kind = "delete"
)

// notification is one call of a handler.
type notification struct {
	kind kind
	key  string
	// object is the new state, or what came with a deletion: an object, or a
	// cache.DeletedFinalStateUnknown. old is that of an update.
	object, old any
	// initial: the handler was told that the object is one of the initial list.
	initial bool
}

// resourceVersion is that of the state that the handler was told; "" if unknown.
func (n notification) resourceVersion() string { return resourceVersionOf(n.object) }

// resync: an update that changes nothing.
func (n notification) resync() bool {
	return n.kind == toldUpdate && resourceVersionOf(n.old) == n.resourceVersion()
}

func resourceVersionOf(obj any) string {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return ""
	}
	return accessor.GetResourceVersion()
}

// observer is a cache.ResourceEventHandler that notes all that it is told. Its
// methods may be called from any goroutine; client-go is to call its handler's
// methods one at a time, and overlapped tells whether it did not.
type observer struct {
	busy       atomic.Bool
	overlapped atomic.Bool
	mu         struct {
		sync.Mutex
		seen []notification
	}
}

var _ cache.ResourceEventHandler = &observer{}

// OnAdd implements cache.ResourceEventHandler.
func (o *observer) OnAdd(obj any, initial bool) {
	o.note(notification{kind: toldAdd, object: obj, initial: initial})
}

// OnUpdate implements cache.ResourceEventHandler.
func (o *observer) OnUpdate(old, obj any) {
	o.note(notification{kind: toldUpdate, object: obj, old: old})
}

// OnDelete implements cache.ResourceEventHandler.
func (o *observer) OnDelete(obj any) { o.note(notification{kind: toldDelete, object: obj}) }

func (o *observer) note(n notification) {
	if !o.busy.CompareAndSwap(false, true) {
		o.overlapped.Store(true)
	}
	defer o.busy.Store(false)
	n.key, _ = cache.DeletionHandlingMetaNamespaceKeyFunc(n.object)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.seen = append(o.mu.seen, n)
}

// seen gives all notifications so far.
func (o *observer) seen() []notification {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.mu.seen)
}

func summary(seen []notification) []string {
	var out []string
	for _, n := range seen {
		out = append(out, fmt.Sprintf("%s %s@%s", n.kind, n.key, n.resourceVersion()))
	}
	return out
}

// runs calls run in a goroutine, and ends it and waits for it with the test.
func runs(t *testing.T, run func(context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

// observe adds a new observer to an informer. At the end of the test its calls must
// not have overlapped.
func observe(t *testing.T, informer cache.SharedInformer) (*observer, cache.ResourceEventHandlerRegistration) {
	t.Helper()
	o := &observer{}
	registration, err := informer.AddEventHandler(o)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.False(t, o.overlapped.Load(), "the handler was called while it was busy")
	})
	return o, registration
}

// awaitSync waits until checker is done.
func awaitSync(t *testing.T, checker cache.DoneChecker) {
	t.Helper()
	select {
	case <-checker.Done():
	case <-within(t).Done():
		require.FailNow(t, fmt.Sprintf("%s is not synced", checker.Name()))
	}
}
