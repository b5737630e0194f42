// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
)

// retryDuration is for how long the tests' reflectors retry internal errors.
const retryDuration = 10 * time.Second

// internalError is what a watch ends with when the server could not go on.
func internalError() watch.Event {
	return watch.Event{Type: watch.Error, Object: &apierrors.NewInternalError(errors.New("injected")).ErrStatus}
}

// testInternalErrors: until the duration is over the watch is resumed, then the
// reflector lists anew. The time is the test's.
func testInternalErrors(t *testing.T, w *world, via way) {
	ns := w.newNamespace(t)
	d := w.writer(t, ns)
	d.create(t, "early")
	r := via.listerWatcher(t, w, ns, nil)
	clock := clocktesting.NewFakeClock(time.Now())
	f := startReflector(t, via, r, cache.ReflectorOptions{Clock: clock}, func(f *cache.Reflector) {
		f.MaxInternalErrorRetryDuration = retryDuration
	})
	w.requireEqual(t, f.store, ns)

	for i := range 3 {
		known := f.LastSyncResourceVersion()
		require.Equal(t, 1, r.inject(internalError()))
		d.create(t, fmt.Sprintf("late-%d", i))
		w.requireEqual(t, f.store, ns)
		f.requireListed(t, 1)
		require.Len(t, r.resumes(), i+1)
		require.GreaterOrEqual(t, number(t, r.resumes()[i].options.ResourceVersion), number(t, known))
	}

	clock.Step(retryDuration + time.Second)
	require.Equal(t, 1, r.inject(internalError()))
	eventually(t, "the reflector does not list", func(context.Context) error {
		clock.Step(time.Second) // its pause before it tries again
		if n := len(r.lists()); n != 2 {
			return fmt.Errorf("it has listed %d times", n)
		}
		return nil
	})
	d.create(t, "last")
	w.requireEqual(t, f.store, ns)
	require.Len(t, r.resumes(), 3)
}

// testInternalErrorRelists: that is what the duration's zero means.
func testInternalErrorRelists(t *testing.T, w *world, via way) {
	ns := w.newNamespace(t)
	d := w.writer(t, ns)
	d.create(t, "early")
	r := via.listerWatcher(t, w, ns, nil)
	f := startReflector(t, via, r, cache.ReflectorOptions{})
	w.requireEqual(t, f.store, ns)
	require.Equal(t, 1, r.inject(internalError()))
	d.create(t, "late")
	w.requireEqual(t, f.store, ns)
	f.requireListed(t, 2)
	require.Empty(t, r.resumes())
}
