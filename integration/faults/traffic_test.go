// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
	"github.com/kube-watchcache/watchcache/integration/internal/judge"
)

// The shape of the traffic.
const (
	keys          = 12
	lanes         = 4
	writeInterval = 150 * time.Millisecond
	probeInterval = 20 * time.Millisecond
	listInterval  = 100 * time.Millisecond
	watches       = 40
	// timely is how soon an answer must come to count.
	timely = time.Second
	// requestTimeout bounds writes and lists.
	requestTimeout = 3 * time.Second
)

// traffic is the clients of one server. Its goroutines are started by
// newTraffic, end with its context and are awaited by stop.
type traffic struct {
	server *apiserver.Process
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	writer   *writer
	gets     *probes
	lists    *probes
	health   []*healthProbe
	watchers []*watcher
}

func newTraffic(t *testing.T, s *apiserver.Process) *traffic {
	ctx, cancel := context.WithCancel(t.Context())
	tr := &traffic{server: s, cancel: cancel}
	tr.writer = &writer{client: s.Devices(t), gate: make(chan struct{}, 1)}
	tr.gets = &probes{client: s.Devices(t), interval: probeInterval, read: probeGet}
	tr.lists = &probes{client: s.Devices(t), interval: listInterval, read: probeList}
	t.Cleanup(tr.stop)
	tr.tasks.Go(func() { tr.writer.run(ctx) })
	tr.tasks.Go(func() { tr.gets.run(ctx) })
	tr.tasks.Go(func() { tr.lists.run(ctx) })
	for _, path := range []string{"/livez", "/readyz"} {
		p := &healthProbe{client: s.Connect(t), url: s.Config.Host + path, path: path}
		tr.health = append(tr.health, p)
		tr.tasks.Go(func() { p.run(ctx) })
	}
	client := s.Devices(t)
	for i := range watches {
		w := newWatcher(client, selectionOf(i))
		tr.watchers = append(tr.watchers, w)
		tr.tasks.Go(func() { w.run(ctx) })
	}
	return tr
}

func (tr *traffic) stop() {
	tr.cancel()
	tr.tasks.Wait()
}

// selectionOf spreads the watches over the kinds of selections.
func selectionOf(i int) judge.Selection {
	s := judge.Selection{}
	switch i % 5 {
	case 0:
	case 1:
		s.Namespace = namespaceOf(i)
	case 2:
		s.Labels = labels.SelectorFromSet(labels.Set{"lane": strconv.Itoa(i % lanes)})
	case 3:
		s.Labels = labels.SelectorFromSet(labels.Set{"flip": "on"})
	case 4:
		s.Namespace, s.Labels = namespaceOf(i), labels.SelectorFromSet(labels.Set{"flip": "on", "lane": strconv.Itoa(i % lanes)})
	}
	return s
}

func namespaceOf(i int) string { return fmt.Sprintf("team-%d", i%2) }
func nameOf(i int) string      { return fmt.Sprintf("device-%02d", i) }
func keyOf(i int) string       { return namespaceOf(i) + "/" + nameOf(i) }

// every calls do each interval until ctx ends. Ticks that come too late are
// dropped.
func every(ctx context.Context, interval time.Duration, do func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			do()
		case <-ctx.Done():
			return
		}
	}
}

// writer is the only one that writes devices.
type writer struct {
	client *versioned.Clientset
	// gate holds the writer back while another goroutine has it.
	gate chan struct{}
	mu   struct {
		sync.Mutex
		attempts []judge.Write
	}
}

func (w *writer) run(ctx context.Context) {
	known := map[string]int64{} // of each key, what was acknowledged last
	n := 0
	every(ctx, writeInterval, func() {
		select {
		case w.gate <- struct{}{}:
			defer func() { <-w.gate }()
		case <-ctx.Done():
			return
		}
		n++
		w.write(ctx, n, known)
	})
}

// pause returns when no write is under way; none begins until the returned
// function is called.
func (w *writer) pause() (resume func()) {
	w.gate <- struct{}{}
	return func() { <-w.gate }
}

// write makes one attempt: every seventh deletes, the others patch, or create
// what is not there.
func (w *writer) write(ctx context.Context, n int, known map[string]int64) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	i := n * 5 % keys
	key, devices := keyOf(i), w.client.FleetV1().Devices(namespaceOf(i))
	if n%7 == 0 {
		attempt := judge.Write{Key: key, Deletes: true, RV: known[key]}
		if err := devices.Delete(ctx, nameOf(i), metav1.DeleteOptions{}); err == nil {
			attempt.Done = time.Now()
		}
		w.note(attempt)
		return
	}
	attempt := judge.Write{Key: key, Content: fmt.Sprintf("write-%d", n)}
	flip := []string{"on", "off"}[n/keys%2]
	patch := fmt.Sprintf(`{"metadata":{"labels":{"flip":%q}},"spec":{"model":%q}}`, flip, attempt.Content)
	device, err := devices.Patch(ctx, nameOf(i), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		device, err = devices.Create(ctx, &fleetv1.Device{
			ObjectMeta: metav1.ObjectMeta{Name: nameOf(i), Labels: map[string]string{"lane": strconv.Itoa(i % lanes), "flip": flip}},
			Spec:       fleetv1.DeviceSpec{Zone: "zone", Owner: "team", Model: attempt.Content},
		}, metav1.CreateOptions{})
	}
	if err == nil {
		attempt.Done, attempt.RV = time.Now(), judge.Version(device.ResourceVersion)
		known[key] = attempt.RV
	}
	w.note(attempt)
}

func (w *writer) note(attempt judge.Write) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.attempts = append(w.mu.attempts, attempt)
}

// writes are all attempts so far.
func (w *writer) writes() []judge.Write {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]judge.Write(nil), w.mu.attempts...)
}

// answers are what reads returned.
type answers struct {
	mu  sync.Mutex
	all []judge.Read
}

func (a *answers) note(answer judge.Read) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, answer)
}

// take gives the answers since the last call.
func (a *answers) take() []judge.Read {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.all
	a.all = nil
	return all
}

// splitKey is the namespace and the name of a key.
func splitKey(key string) (namespace, name string) {
	namespace, name, _ = strings.Cut(key, "/")
	return namespace, name
}
