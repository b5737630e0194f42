// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

// feed is one namespace of a fixture: its writer, and the source by which
// stores and queues follow it.
type feed struct {
	devices
	fixture *fixture
	via     transport
	source  *recorder
}

// newFeed gives a feed of a namespace that nobody else uses.
func newFeed(t *testing.T, fx *fixture, via transport) *feed {
	t.Helper()
	return feedOf(t, fx, via, fx.newNamespace(t))
}

// feedOf gives a feed of a namespace.
func feedOf(t *testing.T, fx *fixture, via transport, namespace string) *feed {
	t.Helper()
	return &feed{devices: fx.writer(t, namespace), fixture: fx, via: via, source: via.listerWatcher(t, fx, namespace, nil)}
}

// follower is what follows the API: a reflector, a controller, an informer.
type follower interface{ LastSyncResourceVersion() string }

// reflect runs a reflector that keeps the store up to date until the test ends.
// The reflector wastes no time between two tries.
func (f *feed) reflect(t *testing.T, store cache.ReflectorStore) *cache.Reflector {
	t.Helper()
	r := cache.NewReflectorWithOptions(f.source, f.via.example(), store, cache.ReflectorOptions{
		Name: t.Name(), Backoff: quickRetries(),
	})
	runs(t, r.RunWithContext)
	return r
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

// awaitList waits until the follower has listed: later writes come as events.
func awaitList(t *testing.T, r follower) {
	t.Helper()
	eventually(t, "nothing is listed", func(context.Context) error { return errIf(r.LastSyncResourceVersion() == "", "not yet") })
}

func reachVersion(t *testing.T, r follower, want uint64) {
	t.Helper()
	eventually(t, "the writes don't arrive", func(context.Context) error {
		if got := r.LastSyncResourceVersion(); got == "" || number(t, got) < want {
			return fmt.Errorf("resourceVersion %q is reached, not %d", got, want)
		}
		return nil
	})
}

// errIf is an error if what is not wanted is the case.
func errIf(unwanted bool, what string, args ...any) error {
	if unwanted {
		return fmt.Errorf(what, args...)
	}
	return nil
}

// detachable is a follower that is away for a while.
type detachable struct {
	source *recorder
	follower
	// example is of the type that its watch carries.
	example runtime.Object
}

// relist is feed.relist for any number at once.
func relist(t *testing.T, fx *fixture, unseen func(), away ...detachable) {
	t.Helper()
	listed, resumed := make([]int, len(away)), make([]int, len(away))
	for i, a := range away {
		a.use(t)
		listed[i], resumed[i] = len(a.source.lists()), len(a.source.resumes())
		a.source.hold()
	}
	unseen()
	fx.flushWindow(t, strconv.FormatUint(fx.cacher().Status().ResourceVersion, 10))
	for _, a := range away {
		a.source.lose(t)
		a.source.release()
	}
	for i, a := range away {
		reachVersion(t, a, fx.cacher().Status().ResourceVersion)
		require.Greater(t, len(a.source.resumes()), resumed[i], "no watch was to be resumed")
		require.Greater(t, len(a.source.lists()), listed[i], "nothing was listed again")
	}
}

// use has the follower's watch deliver something: a reflector does not try to
// resume a watch that ends at once and has delivered nothing. A bookmark of
// what is reached already is delivered. The watch takes the second one when the
// first is delivered.
func (a detachable) use(t *testing.T) {
	t.Helper()
	for range 2 {
		bookmark := a.example.DeepCopyObject()
		accessor, err := meta.Accessor(bookmark)
		require.NoError(t, err)
		accessor.SetResourceVersion(a.LastSyncResourceVersion())
		eventually(t, "there is no watch", func(context.Context) error {
			return errIf(a.source.inject(watch.Event{Type: watch.Bookmark, Object: bookmark}) == 0, "not yet")
		})
	}
}

// lose drops all open watches, with what they hold, and waits for their end.
func (r *recorder) lose(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	lost := make([]*stream, 0, len(r.mu.streams))
	for s := range r.mu.streams {
		lost = append(lost, s)
	}
	r.mu.Unlock()
	require.NotEmpty(t, lost, "there is no watch to lose")
	for _, s := range lost {
		s.drop()
		<-s.ended
	}
}

// label sets labels of a device; nil removes one.
func (f *feed) label(t *testing.T, name string, labels map[string]any) *fleetv1.Device {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	require.NoError(t, err)
	written, err := f.client.FleetV1().Devices(f.namespace).Patch(within(t), name, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(t, err)
	return written
}
