// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1beta1"
	informers "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/informers/externalversions"
)

func testTypedClients(t *testing.T, s *apiserver) {
	client, ctx := clientsetFor(t, s), within(t)
	stable, beta := client.FleetV1().Devices("typed"), client.FleetV1beta1().Devices("typed")

	created, err := stable.Create(ctx, device("typed", "one", "hh-1"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, fleetv1.DevicePending, created.Status.Phase)
	require.NotEmpty(t, created.UID)
	_, err = stable.Create(ctx, device("typed", "one", "hh-1"), metav1.CreateOptions{})
	require.True(t, apierrors.IsAlreadyExists(err), "%v", err)
	_, err = stable.Create(ctx, device("typed", "two", "No Zone!"), metav1.CreateOptions{})
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	require.ErrorContains(t, err, "spec.zone")

	// One write is seen at once in both versions, and so is the next.
	seen, err := beta.Get(ctx, "one", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, created.ResourceVersion, seen.ResourceVersion)
	require.Equal(t, v1beta1.FirmwareStable, seen.Spec.FirmwareChannel)
	seen.Spec.FirmwareChannel, seen.Spec.FirmwareVersion = v1beta1.FirmwareBeta, "1.2.3"
	written, err := beta.Update(ctx, seen, metav1.UpdateOptions{})
	require.NoError(t, err)
	got, err := stable.Get(ctx, "one", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, written.ResourceVersion, got.ResourceVersion)
	require.Equal(t, fleetv1.Firmware{Channel: fleetv1.FirmwareBeta, Version: "1.2.3"}, got.Spec.Firmware)
	require.Equal(t, created.Generation+1, got.Generation)

	// A stale writer is told so.
	created.Spec.Owner = "late"
	_, err = stable.Update(ctx, created, metav1.UpdateOptions{})
	require.True(t, apierrors.IsConflict(err), "%v", err)

	// The status subresource writes the status and nothing else.
	got.Status.Phase, got.Spec.Owner = fleetv1.DeviceReady, "ignored"
	ready, err := stable.UpdateStatus(ctx, got, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, fleetv1.DeviceReady, ready.Status.Phase)
	require.Equal(t, "field-ops", ready.Spec.Owner)
	patched, err := stable.Patch(ctx, "one", types.MergePatchType, []byte(`{"spec":{"owner":"patched"},"status":{"phase":"Offline"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.Equal(t, "patched", patched.Spec.Owner)
	require.Equal(t, fleetv1.DeviceReady, patched.Status.Phase)

	testSelectors(ctx, t, s)

	require.NoError(t, stable.Delete(ctx, "one", metav1.DeleteOptions{}))
	for _, rv := range []string{"", ready.ResourceVersion} {
		_, err = stable.Get(ctx, "one", metav1.GetOptions{ResourceVersion: rv})
		if rv == "" {
			require.True(t, apierrors.IsNotFound(err), "%v", err)
		}
	}
	require.NoError(t, stable.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	left, err := stable.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, left.Items)
}

func testSelectors(ctx context.Context, t *testing.T, s *apiserver) {
	client := clientsetFor(t, s)
	create(t, client, "typed", "many", 9)
	create(t, client, "typed-not", "many", 3)
	stable, beta := client.FleetV1().Devices("typed"), client.FleetV1beta1().Devices("typed")
	for selector, want := range map[string]int{
		"spec.zone=zone-1":                    3,
		"spec.zone!=zone-1":                   7,
		"status.phase=Ready":                  1,
		"spec.zone=hh-1,status.phase=Pending": 0,
		"metadata.name=many-004":              1,
		"spec.firmware.channel=beta":          1,
	} {
		list, err := stable.List(ctx, metav1.ListOptions{FieldSelector: selector})
		require.NoError(t, err, selector)
		require.Len(t, list.Items, want, selector)
	}
	list, err := beta.List(ctx, metav1.ListOptions{FieldSelector: "spec.firmwareChannel=beta", LabelSelector: "kind=sensor"})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	_, err = stable.List(ctx, metav1.ListOptions{FieldSelector: "spec.model=x"})
	require.True(t, apierrors.IsBadRequest(err), "%v", err)
	everywhere, err := client.FleetV1().Devices("").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=many-001"})
	require.NoError(t, err)
	require.Len(t, everywhere.Items, 2)
}

func testDynamicClient(t *testing.T, s *apiserver) {
	client, err := dynamic.NewForConfigAndClient(s.config, s.client(t))
	require.NoError(t, err)
	ctx := within(t)
	for _, version := range []string{"v1", "v1beta1"} {
		resource := client.Resource(schema.GroupVersionResource{Group: "fleet.example.com", Version: version, Resource: "devices"}).Namespace("dynamic")
		before, err := resource.List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		w, err := resource.Watch(ctx, metav1.ListOptions{ResourceVersion: before.GetResourceVersion()})
		require.NoError(t, err)

		name := "one-" + version
		obj := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "fleet.example.com/" + version, "kind": "Device",
			"metadata": map[string]any{"name": name},
			"spec":     map[string]any{"zone": "hh-1", "owner": "field-ops", "model": "Arbor S96"},
		}}
		created, err := resource.Create(ctx, obj, metav1.CreateOptions{})
		require.NoError(t, err)
		require.NoError(t, unstructured.SetNestedField(created.Object, "hh-2", "spec", "zone"))
		updated, err := resource.Update(ctx, created, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.NoError(t, resource.Delete(ctx, name, metav1.DeleteOptions{}))

		var last string
		for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
			event := next(ctx, t, w)
			require.Equal(t, want, event.Type)
			got := event.Object.(*unstructured.Unstructured)
			require.Equal(t, "fleet.example.com/"+version, got.GetAPIVersion())
			require.Equal(t, name, got.GetName())
			last = got.GetResourceVersion()
		}
		require.NotEqual(t, updated.GetResourceVersion(), last, "a deletion carries the resourceVersion of the deletion")
		w.Stop()
	}
}

// next gives a watch's next event.
func next(ctx context.Context, t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case event, ok := <-w.ResultChan():
		require.True(t, ok, "the watch has ended")
		return event
	case <-ctx.Done():
		require.FailNow(t, "no event comes")
	}
	return watch.Event{}
}

func testInformers(t *testing.T, s *apiserver) {
	client := clientsetFor(t, s)
	first := create(t, client, "informed", "early", 10)
	ctx, cancel := context.WithCancel(t.Context())
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace("informed"))
	defer factory.Shutdown()
	defer cancel()
	stable, beta := factory.Fleet().V1().Devices(), factory.Fleet().V1beta1().Devices()
	var added, updated, deleted atomic.Int64
	_, err := stable.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { added.Add(1) },
		UpdateFunc: func(any, any) { updated.Add(1) },
		DeleteFunc: func(any) { deleted.Add(1) },
	})
	require.NoError(t, err)
	beta.Informer()
	factory.Start(ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(within(t).Done()) {
		require.True(t, synced, kind)
	}
	eventually(t, "the informer does not get its initial objects", func(context.Context) (bool, error) {
		list, err := stable.Lister().List(labels.Everything())
		return len(list) == len(first), err
	})

	more := create(t, client, "informed", "late", 10)
	create(t, client, "not-informed", "late", 3)
	for _, d := range more {
		d.Spec.Owner = "informed"
		_, err := client.FleetV1().Devices("informed").Update(within(t), d, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	require.NoError(t, client.FleetV1().Devices("informed").Delete(within(t), first[0].Name, metav1.DeleteOptions{}))
	eventually(t, "the informer does not see the deletion", func(context.Context) (bool, error) { return deleted.Load() == 1, nil })
	require.EqualValues(t, 20, added.Load())
	require.EqualValues(t, 10, updated.Load())

	truth, err := client.FleetV1().Devices("informed").List(within(t), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, truth.Items, 19)
	for i := range truth.Items {
		cached, err := stable.Lister().Devices("informed").Get(truth.Items[i].Name)
		require.NoError(t, err)
		require.Equal(t, truth.Items[i].ResourceVersion, cached.ResourceVersion)
		require.Equal(t, truth.Items[i].Spec, cached.Spec)
	}
	eventually(t, "the informer of v1beta1 has something else", func(context.Context) (bool, error) {
		all, err := beta.Lister().List(labels.Everything())
		if err != nil || len(all) != len(truth.Items) {
			return false, fmt.Errorf("%d devices: %w", len(all), err)
		}
		return true, nil
	})
}
