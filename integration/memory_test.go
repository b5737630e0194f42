// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/util/compatibility"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/kube-watchcache/watchcache/cacher"
	fleetapi "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/install"
	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	clientv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned/typed/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/openapi"
	registry "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/registry/device"
	watchcache "github.com/kube-watchcache/watchcache/server"
	"github.com/kube-watchcache/watchcache/storage/memory"
)

// inMemory serves devices out of a memory.Store to clients that may write.
func inMemory(t *testing.T) (*memory.Store, clientv1.DeviceInterface) {
	t.Helper()
	store, err := memory.New(memory.Config{
		GroupResource: fleetapi.Resource("devices"), ResourcePrefix: "/devices",
		KeyFunc: func(obj runtime.Object) (string, error) { return storage.NamespaceKeyFunc("/devices/", obj) },
		GetAttrsFunc: func(obj runtime.Object) (labels.Set, fields.Set, error) {
			device := obj.(*fleetapi.Device)
			return device.Labels, fields.Set{"metadata.name": device.Name, "metadata.namespace": device.Namespace}, nil
		},
		NewFunc: func() runtime.Object { return &fleetapi.Device{} },
	})
	require.NoError(t, err)
	scheme := runtime.NewScheme()
	require.NoError(t, install.AddToScheme(scheme))
	metav1.AddToGroupVersion(scheme, metav1.Unversioned)
	scheme.AddUnversionedTypes(metav1.Unversioned, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	codecs := serializer.NewCodecFactory(scheme)
	config := genericapiserver.NewConfig(codecs)
	config.ExternalAddress, config.LoopbackClientConfig = "127.0.0.1:443", &restclient.Config{}
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, openapinamer.NewDefinitionNamer(scheme))
	config.RESTOptionsGetter = generic.RESTOptions{
		StorageConfig:  (&storagebackend.Config{Codec: codecs.LegacyCodec(fleetv1.SchemeGroupVersion)}).ForResource(fleetapi.Resource("devices")),
		ResourcePrefix: "/devices", DeleteCollectionWorkers: 1, EnableGarbageCollection: true,
	}
	require.NoError(t, watchcache.Install(config, cacher.WithRawStorage(store.RawStorage)))
	devices, err := registry.NewStorage(scheme, config.RESTOptionsGetter)
	require.NoError(t, err)
	t.Cleanup(devices.Device.Destroy)
	server, err := config.Complete(nil).New("devices", genericapiserver.NewEmptyDelegate())
	require.NoError(t, err)
	t.Cleanup(server.Destroy)
	group := genericapiserver.NewDefaultAPIGroupInfo(fleetapi.GroupName, scheme, metav1.ParameterCodec, codecs)
	group.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{"devices": devices.Device, "devices/status": devices.Status}
	require.NoError(t, watchcache.InstallAPIGroup(server, &group))
	require.NoError(t, watchcache.AddReadinessHook(server))
	require.Eventually(t, func() bool { return watchcache.Readiness(server) == nil }, patience, pollInterval)

	served := httptest.NewUnstartedServer(server.Handler)
	served.EnableHTTP2 = true
	served.StartTLS()
	t.Cleanup(served.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: served.Certificate().Raw})
	client, err := versioned.NewForConfig(&restclient.Config{Host: served.URL, QPS: -1, TLSClientConfig: restclient.TLSClientConfig{CAData: authority}})
	require.NoError(t, err)
	return store, client.FleetV1().Devices("a")
}

// TestWritesToMemory: what a client may do to an object in etcd it may do to one in a
// memory.Store, with the same preconditions, beside the program's own writes.
func TestWritesToMemory(t *testing.T) {
	store, client := inMemory(t)
	ctx := t.Context()
	changes, err := client.Watch(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	t.Cleanup(changes.Stop)
	next := func(want watch.EventType) *fleetv1.Device {
		t.Helper()
		event := <-changes.ResultChan()
		require.Equal(t, want, event.Type, "%v", event.Object)
		return event.Object.(*fleetv1.Device)
	}

	made, err := client.Create(ctx, device("a", "x", "z1"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, made.UID)
	require.Equal(t, made.ResourceVersion, next(watch.Added).ResourceVersion)
	_, err = client.Create(ctx, device("a", "x", "z1"), metav1.CreateOptions{})
	require.True(t, apierrors.IsAlreadyExists(err), err)
	generated := device("a", "", "z1")
	generated.GenerateName = "of-"
	_, err = client.Create(ctx, generated, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, client.Delete(ctx, next(watch.Added).Name, metav1.DeleteOptions{}))
	next(watch.Deleted)
	_, err = client.Create(ctx, device("a", "dry", "z1"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err)

	// Updates: of the version that was read, of an older one, and of any.
	changed := made.DeepCopy()
	changed.Spec.Zone = "z2"
	changed, err = client.Update(ctx, changed, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, changed.ResourceVersion, next(watch.Modified).ResourceVersion)
	same, err := client.Update(ctx, changed, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, changed.ResourceVersion, same.ResourceVersion, "nothing has changed")
	made.Spec.Zone = "z3"
	_, err = client.Update(ctx, made, metav1.UpdateOptions{})
	require.True(t, apierrors.IsConflict(err), err)
	other := changed.DeepCopy()
	other.UID, other.ResourceVersion = "another", ""
	_, err = client.Update(ctx, other, metav1.UpdateOptions{})
	require.True(t, apierrors.IsConflict(err), err)
	reported := changed.DeepCopy()
	reported.Status.Phase = fleetv1.DeviceReady
	reported, err = client.UpdateStatus(ctx, reported, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, fleetv1.DeviceReady, next(watch.Modified).Status.Phase)

	// Patches, with a version and a UID as preconditions.
	patch := func(kind types.PatchType, format string, args ...any) (*fleetv1.Device, error) {
		options := metav1.PatchOptions{}
		if kind == types.ApplyPatchType {
			options.FieldManager = "test"
		}
		return client.Patch(ctx, "x", kind, fmt.Appendf(nil, format, args...), options)
	}
	_, err = patch(types.MergePatchType, `{"metadata":{"resourceVersion":%q},"spec":{"zone":"z4"}}`, made.ResourceVersion)
	require.True(t, apierrors.IsConflict(err), err)
	_, err = patch(types.MergePatchType, `{"metadata":{"uid":"another"},"spec":{"zone":"z4"}}`)
	require.True(t, apierrors.IsInvalid(err), err)
	patched, err := patch(types.MergePatchType, `{"metadata":{"resourceVersion":%q,"uid":%q},"spec":{"zone":"z4"}}`, reported.ResourceVersion, reported.UID)
	require.NoError(t, err)
	require.Equal(t, patched, next(watch.Modified))
	_, err = patch(types.JSONPatchType, `[{"op":"test","path":"/spec/zone","value":"z3"},{"op":"replace","path":"/spec/zone","value":"z5"}]`)
	require.True(t, apierrors.IsInvalid(err), err)
	applied, err := patch(types.ApplyPatchType, `{"apiVersion":"fleet.example.com/v1","kind":"Device","metadata":{"name":"x","labels":{"applied":"yes"}}}`)
	require.NoError(t, err)
	require.Equal(t, applied, next(watch.Modified))

	// The program writes beside its clients.
	require.Equal(t, map[string]string{"kind": "sensor", "applied": "yes"}, applied.Labels, "an apply keeps what others own")
	require.NoError(t, store.Upsert(ctx, &fleetapi.Device{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "x", UID: applied.UID}, Spec: fleetapi.DeviceSpec{Zone: "program"}}))
	require.Equal(t, "program", next(watch.Modified).Spec.Zone)
	_, err = client.Update(ctx, applied, metav1.UpdateOptions{})
	require.True(t, apierrors.IsConflict(err), err)

	// Deletions, with preconditions.
	current, err := client.Get(ctx, "x", metav1.GetOptions{})
	require.NoError(t, err)
	another, stale := types.UID("another"), applied.ResourceVersion
	for _, wrong := range []metav1.Preconditions{{UID: &another}, {ResourceVersion: &stale}, {UID: &current.UID, ResourceVersion: &stale}} {
		err = client.Delete(ctx, "x", metav1.DeleteOptions{Preconditions: &wrong})
		require.True(t, apierrors.IsConflict(err), err)
	}
	require.NoError(t, client.Delete(ctx, "x", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &current.UID, ResourceVersion: &current.ResourceVersion}}))
	require.Equal(t, current.UID, next(watch.Deleted).UID)
	require.True(t, apierrors.IsNotFound(client.Delete(ctx, "x", metav1.DeleteOptions{})))
	require.True(t, apierrors.IsNotFound(store.Remove(ctx, "a", "x")))

	// An object with a finalizer goes when the last one has gone.
	held := device("a", "held", "z1")
	held.Finalizers = []string{"example.com/held"}
	_, err = client.Create(ctx, held, metav1.CreateOptions{})
	require.NoError(t, err)
	next(watch.Added)
	require.NoError(t, client.Delete(ctx, "held", metav1.DeleteOptions{}))
	held = next(watch.Modified)
	require.NotNil(t, held.DeletionTimestamp)
	held.Finalizers = nil
	_, err = client.Update(ctx, held, metav1.UpdateOptions{})
	require.NoError(t, err)
	next(watch.Deleted)

	for i := range 4 {
		d := device("a", strconv.Itoa(i), "z1")
		d.Labels = map[string]string{"odd": strconv.FormatBool(i%2 == 1)}
		_, err = client.Create(ctx, d, metav1.CreateOptions{})
		require.NoError(t, err)
		next(watch.Added)
	}
	require.NoError(t, client.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "odd=true"}))
	left, err := client.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, left.Items, 2)
	require.Equal(t, "0", left.Items[0].Name)
}

// TestConcurrentWritesToMemory: clients that read, change and write one object lose no
// update, though the program writes others.
func TestConcurrentWritesToMemory(t *testing.T) {
	store, client := inMemory(t)
	_, err := client.Create(t.Context(), device("a", "counter", "z1"), metav1.CreateOptions{})
	require.NoError(t, err)
	const clients, each = 8, 20
	count := func(ctx context.Context) error {
		counter, err := client.Get(ctx, "counter", metav1.GetOptions{})
		if err != nil {
			return err
		}
		n, _ := strconv.Atoi(counter.Labels["n"])
		counter.Labels = map[string]string{"n": strconv.Itoa(n + 1)}
		_, err = client.Update(ctx, counter, metav1.UpdateOptions{})
		return err
	}
	backoff := retry.DefaultRetry
	backoff.Steps = 1000 // each conflict is another one's success
	failed := make(chan error, clients*each+1)
	var running sync.WaitGroup
	for range clients {
		running.Go(func() {
			for range each {
				failed <- retry.RetryOnConflict(backoff, func() error { return count(t.Context()) })
			}
		})
	}
	running.Go(func() {
		var err error
		for i := 0; i < 500 && err == nil; i++ {
			err = store.Upsert(t.Context(), &fleetapi.Device{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "other"}, Spec: fleetapi.DeviceSpec{Zone: strconv.Itoa(i)}})
		}
		failed <- err
	})
	running.Wait()
	close(failed)
	for err := range failed {
		require.NoError(t, err)
	}
	counter, err := client.Get(t.Context(), "counter", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(clients*each), counter.Labels["n"])
}
