// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
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

// clause is one thing that a consumer of client-go promises.
type clause struct {
	promise string
	holds   func(t *testing.T, f *feed)
}

// eachClause runs one subtest for each clause and way, each with a namespace of its
// own in the shared fixture.
func eachClause(t *testing.T, clauses []clause) {
	t.Helper()
	bothTransports(t, func(t *testing.T, fx *fixture, via transport) {
		for _, c := range clauses {
			t.Run(c.promise, func(t *testing.T) { c.holds(t, newFeed(t, fx, via)) })
		}
	})
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

// reach waits until the follower has handed everything up to the write on to its
// store or queue.
func reach(t *testing.T, r follower, written metav1.Object) {
	t.Helper()
	reachVersion(t, r, number(t, written.GetResourceVersion()))
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

// relist does something that the follower does not see, because it is away for
// longer than the cache's window lasts: it tries to resume, is told 410, and has to
// list again.
func (f *feed) relist(t *testing.T, r follower, unseen func()) {
	t.Helper()
	relist(t, f.fixture, unseen, detachable{f.source, r, f.via.example()})
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

// key is that of a device of the feed in stores and queues.
func (f *feed) key(name string) string { return f.namespace + "/" + name }

// deleted gives the resourceVersion of the deletion that ended a device after the
// write: the revision that etcd gave it.
func (f *feed) deleted(t *testing.T, after *fleetv1.Device) string {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	since := int64(number(t, after.ResourceVersion)) + 1
	for response := range f.fixture.keys.Watch(ctx, devicesPrefix+f.key(after.Name), clientv3.WithRev(since)) {
		require.NoError(t, response.Err())
		for _, event := range response.Events {
			if event.Type == clientv3.EventTypeDelete {
				return strconv.FormatInt(event.Kv.ModRevision, 10)
			}
		}
	}
	require.FailNow(t, fmt.Sprintf("%s was not deleted", f.key(after.Name)))
	return ""
}

// contents is an object as a delivery or a response shows it, whatever its version.
type contents struct{ key, resourceVersion, bytes string }

func look(t *testing.T, obj any) contents {
	t.Helper()
	key, err := cache.MetaNamespaceKeyFunc(obj)
	require.NoError(t, err)
	d := mustInternal(t, obj)
	data, err := encode(d)
	require.NoError(t, err)
	return contents{key: key, resourceVersion: d.ResourceVersion, bytes: string(data)}
}

// own gives a response of the API as the type that the feed's deliveries have.
func (f *feed) own(t *testing.T, written *fleetv1.Device) runtime.Object {
	t.Helper()
	if f.via.inProcess {
		return mustInternal(t, written)
	}
	return written
}
