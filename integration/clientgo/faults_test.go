// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	crand "crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1beta1"
	informers "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/informers/externalversions"
)

// TestFaults disturbs a fixture in which objects are written all the time. After each
// fault every informer has to be what etcd is, byte for byte, and what its handler
// was told a subsequence of what happened. At the end no goroutine may be left.
func TestFaults(t *testing.T) {
	fx := newFixture(t)
	for _, fault := range []struct {
		name  string
		cause func(*testing.T, *trial)
	}{
		{"the connections are cut", cutConnections},
		{"the connections are cut in the middle of an event", cutMidEvent},
		{"the window is flushed while nothing gets through", flushUnseen},
		{"the API server restarts", func(t *testing.T, s *trial) { s.fx.restartServer(t) }},
		{"etcd restarts", func(t *testing.T, s *trial) { s.fx.restartEtcd(t) }},
		{"everything at once", everything},
	} {
		t.Run(fault.name, func(t *testing.T) { newTrial(t, fx).run(t, fault.cause) })
	}
}

// trial is what is there when a fault happens: informers of one namespace that are
// in sync, and writers there.
type trial struct {
	fx        *fixture
	namespace string
	start     int64 // etcd's revision before anything
	informers []*trialInformer
	// inProcess is that of the trialInformer that has no connection to cut, overHTTPS that of
	// one that has.
	inProcess, overHTTPS *recorder
	writes               *writes
}

// trialInformer is an informer and its handler.
type trialInformer struct {
	name     string
	informer cache.SharedIndexInformer
	observer *observer
}

// newTrial starts one informer of each kind. They are new for each fault, because
// client-go's pauses grow from one failure to the next.
func newTrial(t *testing.T, fx *fixture) *trial {
	t.Helper()
	s := &trial{fx: fx, namespace: fx.newNamespace(t), start: fx.revision(t)}
	var inProcess, overHTTPS cache.SharedIndexInformer
	inProcess, s.inProcess = recorded(t, fx, transport{inProcess: true}, s.namespace)
	overHTTPS, s.overHTTPS = recorded(t, fx, transport{}, s.namespace)
	s.overHTTPS.plain = true
	s.add(t, "in process", inProcess)
	s.add(t, "over HTTPS, list and watch", overHTTPS)
	generated := informers.NewSharedInformerFactoryWithOptions(fx.client(t), 0, informers.WithNamespace(s.namespace))
	s.add(t, "over HTTPS, generated factory", generated.Fleet().V1().Devices().Informer())
	s.add(t, "over HTTPS, generated factory, v1beta1", generated.Fleet().V1beta1().Devices().Informer())
	unstructured := dynamicinformer.NewFilteredDynamicSharedInformerFactory(fx.dynamic(t), 0, s.namespace, nil)
	for _, version := range []string{fleetv1.SchemeGroupVersion.Version, v1beta1.SchemeGroupVersion.Version} {
		resource := fleetv1.SchemeGroupVersion.WithResource("devices")
		resource.Version = version
		s.add(t, "over HTTPS, dynamic factory, "+version, unstructured.ForResource(resource).Informer())
	}
	runs(t, inProcess.RunWithContext)
	runs(t, overHTTPS.RunWithContext)
	generated.StartWithContext(t.Context())
	t.Cleanup(generated.Shutdown)
	unstructured.Start(t.Context().Done())
	t.Cleanup(unstructured.Shutdown)

	d := fx.writer(t, s.namespace)
	s.writes = startWrites(t, d)
	for _, a := range s.informers {
		awaitSync(t, a.informer.HasSyncedChecker())
		awaitList(t, a.informer.LastSyncResourceVersion)
	}
	s.writes.await(t, 10)
	return s
}

// recorded returns an informer and the recorder that it lists and watches by, for tests
// that get in its way.
func recorded(t *testing.T, fx *fixture, via transport, namespace string) (cache.SharedIndexInformer, *recorder) {
	t.Helper()
	r := via.listerWatcher(t, fx, namespace)
	return cache.NewSharedIndexInformer(r, via.example(), 0, cache.Indexers{}), r
}

func (s *trial) add(t *testing.T, name string, informer cache.SharedIndexInformer) {
	t.Helper()
	o, _ := observe(t, informer)
	s.informers = append(s.informers, &trialInformer{name: name, informer: informer, observer: o})
}

// run lets the fault happen, has more written, and then compares.
func (s *trial) run(t *testing.T, cause func(*testing.T, *trial)) {
	cause(t, s)
	s.writes.await(t, 10)
	s.writes.stop()
	for _, a := range s.informers {
		t.Run(a.name, func(t *testing.T) {
			s.fx.requireEqual(t, a.informer.GetStore(), s.namespace)
			s.fx.requireTold(t, a.observer, s.namespace)
			// A write that was given up may still come true: the history is read last.
			told := a.observer.seen()
			requireSubsequence(t, s.fx.history(t, s.namespace, s.start), told)
		})
	}
}

func cutConnections(t *testing.T, s *trial) {
	for range 3 {
		s.inProcess.drop()
		s.fx.cut(t)
		s.writes.await(t, 5)
	}
}

// cutMidEvent writes an object of which the clients get the first quarter.
func cutMidEvent(t *testing.T, s *trial) {
	const size = 128 << 10
	s.writes.stop() // so that it is that event, and no other
	for _, a := range s.informers {
		s.fx.requireEqual(t, a.informer.GetStore(), s.namespace)
	}
	s.inProcess.hold()
	s.fx.cutAfter(t, size/4)
	large := device(s.namespace, "large")
	// Random, because streamed lists are compressed, and what comes after them too.
	ballast := make([]byte, size)
	_, err := crand.Read(ballast)
	require.NoError(t, err)
	large.Annotations = map[string]string{"ballast": base64.StdEncoding.EncodeToString(ballast)}
	_, err = s.writes.devices.client.FleetV1().Devices(s.namespace).Create(within(t), large, metav1.CreateOptions{})
	require.NoError(t, err)
	eventually(t, "the event does not get that far", func(context.Context) error {
		if armed, held := s.fx.proxy.Limited(), s.inProcess.holding(); armed > 0 || held == 0 {
			return fmt.Errorf("%d connections have not been cut; %d watches in process have an event", armed, held)
		}
		return nil
	})
	s.inProcess.drop()
	s.inProcess.release()
	s.writes = startWrites(t, s.writes.devices)
}

// flushUnseen flushes the window while nothing gets through to anybody, and then
// cuts the connections: what is asked for after that is gone.
func flushUnseen(t *testing.T, s *trial) {
	s.inProcess.hold()
	s.fx.proxy.Silence()
	s.writes.await(t, 10)
	for _, a := range s.informers {
		s.fx.flushWindow(t, a.informer.LastSyncResourceVersion())
	}
	s.inProcess.drop()
	s.fx.cut(t)
	s.fx.proxy.Heal()
	s.inProcess.release()
	for _, r := range []*recorder{s.inProcess, s.overHTTPS} {
		eventually(t, "nothing is listed again", func(context.Context) error {
			if n := len(r.lists()); n < 2 {
				return fmt.Errorf("%d lists", n)
			}
			return nil
		})
	}
}

// everything: the server goes, etcd restarts in its absence, and clients that come back
// are cut off once more.
func everything(t *testing.T, s *trial) {
	known := s.informers[0].informer.LastSyncResourceVersion()
	s.fx.stopServer(t)
	s.fx.restartEtcd(t)
	s.fx.startServer(t)
	s.writes.await(t, 10)
	s.fx.flushWindow(t, known)
	s.inProcess.drop()
	s.fx.cut(t)
}

// writes is two writers that write at random, whatever happens. Its goroutines are
// started by startWrites and awaited by stop.
type writes struct {
	devices devices
	done    atomic.Int64
	cancel  context.CancelFunc
	writers sync.WaitGroup
}

// startWrites starts to write, until stop or the end of the test.
func startWrites(t *testing.T, d devices) *writes {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &writes{devices: d, cancel: cancel}
	for i := range 2 {
		w.writers.Go(func() {
			for ctx.Err() == nil {
				w.one(ctx, fmt.Sprintf("writer-%d-%d", i, rand.IntN(5)))
			}
		})
	}
	t.Cleanup(w.stop)
	return w
}

func (w *writes) stop() {
	w.cancel()
	w.writers.Wait()
}

// one does one write, which may fail: because there is no server, because there is
// such a device, or because there is not.
func (w *writes) one(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	api, err := w.devices.client.FleetV1().Devices(w.devices.namespace), error(nil)
	switch rand.IntN(5) {
	case 0:
		err = api.Delete(ctx, name, metav1.DeleteOptions{})
	case 1:
		_, err = api.Create(ctx, device(w.devices.namespace, name), metav1.CreateOptions{})
	default:
		patch := fmt.Sprintf(`{"spec":{"owner":"owner-%d"}}`, rand.IntN(1000))
		_, err = api.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	}
	if err == nil {
		w.done.Add(1)
	}
}

// await waits for n writes from now on.
func (w *writes) await(t *testing.T, n int64) {
	t.Helper()
	before := w.done.Load()
	eventually(t, "nothing can be written", func(context.Context) error {
		if w.done.Load() < before+n {
			return errors.New("too few writes")
		}
		return nil
	})
}
