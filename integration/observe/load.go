// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
)

// namespace is where the load's devices are.
const namespace = "observed"

// requestTimeout bounds one request of the load, whose server may be broken.
const requestTimeout = 30 * time.Second

// Load is what clients do to a server, until they are told to stop. Requests that
// fail are not repeated: a server that is broken on purpose refuses some.
type Load struct {
	// Pause is the time between two requests of one client. 0: 200 ms.
	Pause time.Duration
	// Objects is how many devices there are. 0: 20.
	Objects int
	// Bytes is the size of a device. 0: as small as it gets.
	Bytes int
	// Writers, Readers and Watchers are numbers of clients.
	Writers, Readers, Watchers int
}

// Run runs all clients until ctx ends, and returns after the last has ended.
func (l Load) Run(ctx context.Context, config *rest.Config) error {
	if l.Pause == 0 {
		l.Pause = 200 * time.Millisecond
	}
	if l.Objects == 0 {
		l.Objects = 20
	}
	config = rest.CopyConfig(config)
	config.UserAgent = "observe-load"
	client, err := versioned.NewForConfig(config)
	if err != nil {
		return err
	}
	var clients sync.WaitGroup
	for i := range l.Writers {
		clients.Go(func() { l.repeat(ctx, func(ctx context.Context, n int) { l.write(ctx, client, i, n) }) })
	}
	for range l.Readers {
		clients.Go(func() { l.repeat(ctx, func(ctx context.Context, n int) { l.read(ctx, client, n) }) })
	}
	for range l.Watchers {
		clients.Go(func() { l.repeat(ctx, func(context.Context, int) { l.watch(ctx, client) }) })
	}
	clients.Wait()
	return nil
}

// repeat calls do with a number that grows, until ctx ends.
func (l Load) repeat(ctx context.Context, do func(ctx context.Context, n int)) {
	for n := 0; ctx.Err() == nil; n++ {
		bounded, cancel := context.WithTimeout(ctx, requestTimeout)
		do(bounded, n)
		cancel()
		select {
		case <-time.After(l.Pause):
		case <-ctx.Done():
		}
	}
}

// write creates or changes a device of the writer, and deletes some.
func (l Load) write(ctx context.Context, client versioned.Interface, writer, n int) {
	devices := client.FleetV1().Devices(namespace)
	device := Device(fmt.Sprintf("load-%d-%d", writer, n%l.Objects), n, l.Bytes)
	if _, err := devices.Create(ctx, device, metav1.CreateOptions{}); err == nil {
		return
	}
	if n%7 == 6 {
		_ = devices.Delete(ctx, device.Name, metav1.DeleteOptions{})
		return
	}
	// An update without a resourceVersion replaces whatever is there.
	_, _ = devices.Update(ctx, device, metav1.UpdateOptions{})
}

// read reads in each of the ways that the cache can be asked.
func (l Load) read(ctx context.Context, client versioned.Interface, n int) {
	devices := client.FleetV1().Devices(namespace)
	list := func(options metav1.ListOptions) string {
		items, err := devices.List(ctx, options)
		if err != nil {
			return ""
		}
		return items.Continue
	}
	switch n % 5 {
	case 0:
		list(metav1.ListOptions{})
	case 1:
		list(metav1.ListOptions{FieldSelector: "spec.zone=zone-1"})
	case 2:
		if next := list(metav1.ListOptions{Limit: 3}); next != "" {
			list(metav1.ListOptions{Limit: 3, Continue: next})
		}
	case 3:
		_, _ = devices.Get(ctx, "load-0-0", metav1.GetOptions{})
	case 4:
		list(metav1.ListOptions{ResourceVersion: "0"})
	}
}

// watch watches until the watch ends or ctx does.
func (l Load) watch(ctx context.Context, client versioned.Interface) {
	watch, err := client.FleetV1().Devices(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: "0", AllowWatchBookmarks: true})
	if err != nil {
		return
	}
	defer watch.Stop()
	for range watch.ResultChan() {
	}
}

// Device returns a device of at least so many bytes, which differs from that of
// another n.
func Device(name string, n, bytes int) *fleetv1.Device {
	return &fleetv1.Device{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{"kind": "sensor"},
			Annotations: map[string]string{"turn": fmt.Sprint(n), "padding": strings.Repeat("x", bytes)},
		},
		Spec: fleetv1.DeviceSpec{Zone: fmt.Sprintf("zone-%d", n%3), Owner: "field-ops", Model: "Arbor S96"},
	}
}
