// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/install"
	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/internal/realistic"
)

// heapKinds are the objects whose memory is measured, and what is gone for.
var heapKinds = []struct {
	name string
	make func() (realistic.Kind, error)
	goal goal
}{
	{"4-KB pod", func() (realistic.Kind, error) { return realistic.Pods(4000) }, ofShipped(0.6)},
	{"15-KB pod", func() (realistic.Kind, error) { return realistic.Pods(15_000) }, ofShipped(0.6)},
	{"1-KB unstructured object", func() (realistic.Kind, error) { return realistic.CustomResources(1000) }, goal{most: 2_000, byMedian: true}},
	{"10-KB unstructured object", func() (realistic.Kind, error) { return realistic.CustomResources(10_000) }, goal{most: 20_000, byMedian: true}},
	{"100-KB unstructured object", func() (realistic.Kind, error) { return realistic.CustomResources(100_000) }, goal{most: 200_000, byMedian: true}},
	{"device of the example", deviceKind, ofShipped(0.6)},
}

// heapRows measure the heap of a cache for each object, the object included; the
// floor has the decoded objects and nothing else.
func heapRows() (rows []row) {
	for _, k := range heapKinds {
		rows = append(rows, row{
			name: "heap of a " + k.name, figures: []figure{{unit: octets, goal: k.goal}}, subjects: withShippedAndFloor,
			open: objectHeap{kind: k.make}.open,
		})
	}
	for _, k := range []int{0, 3} {
		rows = append(rows, row{
			name: "heap of an update in the window, " + heapKinds[k].name, figures: []figure{{unit: octets, goal: noGoal()}},
			subjects: withShippedAndFloor, open: objectHeap{kind: heapKinds[k].make, updates: true}.open,
		})
	}
	return rows
}

// objectHeap measures what an object takes, or an update of its status.
type objectHeap struct {
	kind    func() (realistic.Kind, error)
	updates bool
}

// heapBytes is about how many encoded bytes are in a cache whose heap is measured,
// and mostUpdates how many updates: both caches' windows must have them all.
const (
	heapBytes   = 4 << 20
	mostUpdates = 500
)

func (m objectHeap) open(_ context.Context, s size) (*work, error) {
	kind, err := m.kind()
	if err != nil {
		return nil, err
	}
	first, err := kind.Encode(0, 0)
	if err != nil {
		return nil, err
	}
	n := max(s.of(min(s.objects, heapBytes/len(first)), s.repeats), 5)
	return fresh(func(ctx context.Context, sub subject) ([]float64, error) {
		d := &decoded{kind: kind, n: n}
		var each float64
		if sub == floor {
			each, err = m.least(d)
		} else {
			each, err = m.measureOn(ctx, sub, d)
		}
		return []float64{each}, err
	}), nil
}

// least is the memory of decoded objects in a slice.
func (m objectHeap) least(d *decoded) (float64, error) {
	n := d.count(m.updates)
	objects := make([]apiruntime.Object, n)
	before, _ := memory()
	for i := range n {
		var err error
		if objects[i], err = d.object(i, m.updates); err != nil {
			return 0, err
		}
	}
	after, _ := memory()
	runtime.KeepAlive(objects)
	return (after - before) / float64(n), nil
}

func (m objectHeap) measureOn(ctx context.Context, sub subject, d *decoded) (float64, error) {
	// The first object makes what all objects of a type share, which does not count.
	if _, err := d.object(0, false); err != nil {
		return 0, err
	}
	b := d.backend()
	before, _ := memory()
	c, err := open(ctx, sub, b, cacheOptions{kind: &d.kind})
	if err != nil {
		return 0, err
	}
	defer c.close()
	if err := settle(ctx); err != nil {
		return 0, err
	}
	n := d.count(m.updates)
	if m.updates {
		before, _ = memory()
		for i := range n {
			object, err := d.object(i, true)
			if err == nil {
				err = b.emit(object)
			}
			if err != nil {
				return 0, err
			}
		}
		if err := d.reached(ctx, c, n-1); err != nil {
			return 0, err
		}
		if err := settle(ctx); err != nil {
			return 0, err
		}
	}
	after, _ := memory()
	if d.failed != nil {
		return 0, d.failed
	}
	runtime.KeepAlive(c)
	return (after - before) / float64(n), nil
}

// decoded makes objects as a storage does that decodes what it has read, each for
// itself.
type decoded struct {
	kind   realistic.Kind
	n      int
	failed error
}

// count is how many objects there are, or updates of them.
func (d *decoded) count(updates bool) int {
	if updates {
		return min(d.n, mostUpdates)
	}
	return d.n
}

// object returns the i-th object, or the i-th update, which is of the i-th object.
func (d *decoded) object(i int, updated bool) (apiruntime.Object, error) {
	n, rv := 0, uint64(i+1)
	if updated {
		n, rv = 1, uint64(d.n+i+1)
	}
	encoded, err := d.kind.Encode(i, n)
	if err != nil {
		return nil, err
	}
	return d.kind.Decode(encoded, rv)
}

func (d *decoded) backend() *backend {
	b := newBackend(nil)
	b.newObject = d.kind.New
	b.version.Store(uint64(d.n))
	b.each = func(yield func(apiruntime.Object) bool) {
		for i := range d.n {
			object, err := d.object(i, false)
			if err != nil {
				d.failed = err
				return
			}
			if !yield(object) {
				return
			}
		}
	}
	return b
}

// reached returns when the cache shows the i-th update.
func (d *decoded) reached(ctx context.Context, c *cached, i int) error {
	object, err := d.object(i, true)
	if err != nil {
		return err
	}
	key, err := realistic.Key(object)
	if err != nil {
		return err
	}
	want := uint64(d.n + i + 1)
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		shown := d.kind.New()
		if err := c.Get(ctx, key, storage.GetOptions{ResourceVersion: "0"}, shown); err != nil {
			return err
		}
		if rv, err := c.backend.versioner.ObjectResourceVersion(shown); err != nil || rv == want {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// deviceKind is the example server's devices, as its internal type.
func deviceKind() (realistic.Kind, error) {
	scheme := apiruntime.NewScheme()
	if err := install.AddToScheme(scheme); err != nil {
		return realistic.Kind{}, err
	}
	codecs := serializer.NewCodecFactory(scheme)
	codec := codecs.CodecForVersions(codecs.LegacyCodec(fleetv1.SchemeGroupVersion), codecs.UniversalDeserializer(), fleetv1.SchemeGroupVersion, fleet.SchemeGroupVersion)
	return realistic.Kind{
		Name: "device of the example", Resource: fleet.Resource("devices"), Codec: codec,
		New: func() apiruntime.Object { return &fleet.Device{} }, NewList: func() apiruntime.Object { return &fleet.DeviceList{} },
		Make: func(i int) apiruntime.Object { return makeDevice(i) },
		Update: func(object apiruntime.Object, n int) {
			object.(*fleet.Device).Status.Message = fmt.Sprintf("seen %d times", n)
		},
		Attrs: func(object apiruntime.Object) (labels.Set, fields.Set, error) {
			d, ok := object.(*fleet.Device)
			if !ok {
				return nil, nil, fmt.Errorf("%T is no Device", object)
			}
			return d.Labels, fields.Set{
				"metadata.name": d.Name, "metadata.namespace": d.Namespace, "spec.zone": d.Spec.Zone, "spec.owner": d.Spec.Owner,
				"status.phase": string(d.Status.Phase), "spec.firmware.channel": string(d.Spec.Firmware.Channel),
			}, nil
		},
	}, nil
}

func makeDevice(i int) *fleet.Device {
	seen := metav1.Unix(1_700_000_000+int64(i), 0)
	return &fleet.Device{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("scanner-%05d", i), Namespace: namespaceName(i / 200), UID: "0b6f6cd4-5bd1-4b5e-9d1f-6c9d7f2e1a33",
			CreationTimestamp: seen, Labels: map[string]string{"site": fmt.Sprintf("site-%02d", i/100), "floor": fmt.Sprint(i % 4)},
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: "fleetctl", Operation: metav1.ManagedFieldsOperationApply, APIVersion: "fleet.example.com/v1", Time: &seen, FieldsType: "FieldsV1",
				FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:floor":{},"f:site":{}}},"f:spec":{"f:firmware":{"f:channel":{},"f:version":{}},"f:model":{},"f:owner":{},"f:zone":{}}}`),
			}, {
				Manager: "agent", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "fleet.example.com/v1", Time: &seen, FieldsType: "FieldsV1", Subresource: "status",
				FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:lastSeenTime":{},"f:message":{},"f:observedGeneration":{},"f:phase":{}}}`),
			}},
		},
		Spec: fleet.DeviceSpec{
			Zone: fmt.Sprintf("zone-%d", i%3), Owner: fmt.Sprintf("team-%02d", i/100), Model: "Scanner 9000",
			Firmware: fleet.Firmware{Channel: fleet.FirmwareStable, Version: "1.17.3"},
		},
		Status: fleet.DeviceStatus{Phase: fleet.DeviceReady, Message: "seen a minute ago", LastSeenTime: &seen, ObservedGeneration: 3},
	}
}
