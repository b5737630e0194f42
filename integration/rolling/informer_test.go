// SPDX-License-Identifier: Apache-2.0

package rolling

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/integration/internal/judge"
)

// informer is a client-go informer whose watches are recorded.
type informer struct {
	name      string
	selection judge.Selection
	client    *versioned.Clientset
	shared    cache.SharedIndexInformer
	mu        struct {
		sync.Mutex
		lists   int // as a watch or not
		streams []*judge.Stream
	}
}

// The namespaces and names that writers write to. Those of quiet namespaces do not change.
const (
	namespaces = 10
	names      = 6
	quiet      = "quiet"
)

func namespace(n int) string { return fmt.Sprintf("busy-%d", n%namespaces) }

// selectionOf spreads informers over the kinds of selections.
func selectionOf(n int) judge.Selection {
	lane := strconv.Itoa(n % namespaces)
	switch {
	case n%20 == 0:
		return judge.Selection{}
	case n%4 == 1:
		return judge.Selection{Namespace: namespace(n)}
	case n%4 == 2:
		return judge.Selection{Labels: labels.SelectorFromSet(labels.Set{"lane": lane, "flip": "on"})}
	case n%4 == 3:
		return judge.Selection{Fields: fields.OneTermEqualSelector("spec.zone", "zone-"+lane)}
	}
	return judge.Selection{Namespace: quiet}
}

// follow runs an informer until ctx ends.
func (f *fleet) follow(ctx context.Context, client *versioned.Clientset, n int, running *sync.WaitGroup) *informer {
	i := &informer{name: strconv.Itoa(n), selection: selectionOf(n), client: client}
	i.shared = cache.NewSharedIndexInformer(&cache.ListWatch{ListWithContextFunc: i.list, WatchFuncWithContext: i.watch}, &fleetv1.Device{}, 0, nil)
	running.Go(func() { i.shared.RunWithContext(ctx) })
	return i
}

// narrow adds the selection to the options of a request.
func (i *informer) narrow(opts *metav1.ListOptions) {
	if i.selection.Labels != nil {
		opts.LabelSelector = i.selection.Labels.String()
	}
	if i.selection.Fields != nil {
		opts.FieldSelector = i.selection.Fields.String()
	}
}

func (i *informer) list(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	i.mu.Lock()
	i.mu.lists++
	i.mu.Unlock()
	i.narrow(&opts)
	return i.client.FleetV1().Devices(i.selection.Namespace).List(ctx, opts)
}

func (i *informer) watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	i.narrow(&opts)
	s := &judge.Stream{Name: i.name, Selection: i.selection}
	i.mu.Lock()
	if opts.SendInitialEvents != nil && *opts.SendInitialEvents {
		s.Begin = judge.Marked
		i.mu.lists++
	}
	i.mu.Unlock()
	if opts.ResourceVersion != "" {
		s.From = judge.Version(opts.ResourceVersion)
	}
	w, err := i.client.FleetV1().Devices(i.selection.Namespace).Watch(ctx, opts)
	if err != nil {
		return nil, err
	}
	i.mu.Lock()
	i.mu.streams = append(i.mu.streams, s)
	i.mu.Unlock()
	r := &recorded{Interface: w, events: make(chan watch.Event), stopped: make(chan struct{})}
	go r.record(i, s)
	return r, nil
}

// recorded is a watch whose events are kept as they are passed on.
type recorded struct {
	watch.Interface
	events  chan watch.Event
	stop    sync.Once
	stopped chan struct{}
}

func (r *recorded) ResultChan() <-chan watch.Event { return r.events }

func (r *recorded) Stop() {
	r.stop.Do(func() { close(r.stopped) })
	r.Interface.Stop()
}

// record ends when the watch ends or is stopped.
func (r *recorded) record(i *informer, as *judge.Stream) {
	defer close(r.events)
	for event := range r.Interface.ResultChan() {
		if device, ok := event.Object.(*fleetv1.Device); ok {
			i.mu.Lock()
			as.Events = append(as.Events, judge.EventOf(event.Type, device))
			i.mu.Unlock()
		}
		select {
		case r.events <- event:
		case <-r.stopped:
			return
		}
	}
}

// lists is how often the informer has listed.
func (i *informer) lists() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.mu.lists
}

// judged holds what the informer has, and what came to it, to etcd's history.
func (i *informer) judged(h *judge.History) (found judge.Violations) {
	have := map[string]judge.Item{}
	for _, object := range i.shared.GetStore().List() {
		device := object.(*fleetv1.Device)
		have[judge.KeyOf(device)] = judge.ItemOf(device)
	}
	if want := h.StateAt(i.selection, h.Rev()); !maps.Equal(have, want) {
		found.Add(judge.Complete, "informer %s of %v has %v, and etcd %v", i.name, i.selection, have, want)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, s := range i.mu.streams {
		found = append(found, judge.Streams(h, h.Rev(), *s)...)
	}
	return found
}
