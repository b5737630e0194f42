// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/install"
	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/registry/device"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// inside is a third server, in the process of the test and without HTTPS: the
// storage of devices of the example server, on a cache of its own, through proxies
// of its own to the members of etcd. Its clients call the storage as the handlers
// of a server do, and their watches are the cache's own.
type inside struct {
	upstream
	scheme *runtime.Scheme
	codecs serializer.CodecFactory
	mu     struct {
		sync.RWMutex
		devices *device.Storage // nil: closed
		backend *etcd3.Backend
	}
}

// errClosed is the answer of a server that does not run.
var errClosed = apierrors.NewServiceUnavailable("the cache in the test's process is closed")

// newInside starts the server, which ends with the test.
func newInside(t *testing.T, up upstream) *inside {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, install.AddToScheme(scheme))
	in := &inside{upstream: up, scheme: scheme, codecs: serializer.NewCodecFactory(scheme)}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, in.open(ctx))
	t.Cleanup(func() { require.NoError(t, in.close()) })
	return in
}

// open starts a cache.
func (in *inside) open(ctx context.Context) (err error) {
	config := storagebackend.NewDefaultConfig("/registry", in.codecs.LegacyCodec(fleetv1.SchemeGroupVersion))
	config.Transport.ServerList = in.addresses()
	config.CompactionInterval = 0 // history goes when the test says so
	settings, err := etcd3.ConfigFrom(*config)
	if err != nil {
		return err
	}
	settings.Prefix, settings.Logger = "", zap.NewNop()
	backend, err := etcd3.Open(ctx, settings)
	if err != nil {
		return err
	}
	resource := fleet.Resource("devices")
	devices, err := device.NewStorage(in.scheme, generic.RESTOptions{
		StorageConfig:  config.ForResource(resource),
		Decorator:      cacher.Decorator(cacher.WithRawStorage(backend.RawStorage)),
		ResourcePrefix: resource.Group + "/" + resource.Resource,
	})
	if err != nil {
		return errors.Join(err, backend.Close())
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.mu.devices, in.mu.backend = devices, backend
	return nil
}

// close ends the cache under its clients, as the end of a server does.
func (in *inside) close() error {
	in.mu.Lock()
	devices, backend := in.mu.devices, in.mu.backend
	in.mu.devices, in.mu.backend = nil, nil
	in.mu.Unlock()
	if devices == nil {
		return nil
	}
	devices.Device.Destroy()
	return backend.Close()
}

func (in *inside) store() (*device.REST, error) {
	in.mu.RLock()
	defer in.mu.RUnlock()
	if in.mu.devices == nil {
		return nil, errClosed
	}
	return in.mu.devices.Device, nil
}

// devices implements client.
func (in *inside) devices(namespace string) devices { return insideDevices{in, namespace} }

// insideDevices are the devices of one namespace, or of all.
type insideDevices struct {
	*inside
	namespace string
}

func (d insideDevices) Get(ctx context.Context, name string, options metav1.GetOptions) (*fleetv1.Device, error) {
	store, err := d.store()
	if err != nil {
		return nil, err
	}
	object, err := store.Get(genericapirequest.WithNamespace(ctx, d.namespace), name, &options)
	return d.external(object, err)
}

func (d insideDevices) List(ctx context.Context, options metav1.ListOptions) (*fleetv1.DeviceList, error) {
	store, err := d.store()
	if err != nil {
		return nil, err
	}
	var converted internalversion.ListOptions
	if err := internalversion.Convert_v1_ListOptions_To_internalversion_ListOptions(&options, &converted, nil); err != nil {
		return nil, err
	}
	object, err := store.List(genericapirequest.WithNamespace(ctx, d.namespace), &converted)
	if err != nil {
		return nil, err
	}
	list := &fleetv1.DeviceList{}
	return list, d.scheme.Convert(object, list, nil)
}

// Watch ends after the options' timeout, as the handler of a server sees to it.
func (d insideDevices) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	store, err := d.store()
	if err != nil {
		return nil, err
	}
	var converted internalversion.ListOptions
	if err := internalversion.Convert_v1_ListOptions_To_internalversion_ListOptions(&options, &converted, nil); err != nil {
		return nil, err
	}
	cancel := context.CancelFunc(func() {})
	if options.TimeoutSeconds != nil {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(*options.TimeoutSeconds)*time.Second)
	}
	opened, err := store.Watch(genericapirequest.WithNamespace(ctx, d.namespace), &converted)
	if err != nil {
		cancel()
		return nil, err
	}
	return timedOut{opened, cancel}, nil
}

// timedOut is a watch whose context ends with it.
type timedOut struct {
	watch.Interface
	cancel context.CancelFunc
}

// Stop implements watch.Interface.
func (w timedOut) Stop() {
	w.Interface.Stop()
	w.cancel()
}

func (d insideDevices) Create(ctx context.Context, created *fleetv1.Device, options metav1.CreateOptions) (*fleetv1.Device, error) {
	store, err := d.store()
	if err != nil {
		return nil, err
	}
	object, err := d.internal(created)
	if err != nil {
		return nil, err
	}
	object.Namespace = d.namespace
	out, err := store.Create(genericapirequest.WithNamespace(ctx, d.namespace), object, rest.ValidateAllObjectFunc, &options)
	return d.external(out, err)
}

func (d insideDevices) Update(ctx context.Context, updated *fleetv1.Device, options metav1.UpdateOptions) (*fleetv1.Device, error) {
	object, err := d.internal(updated)
	if err != nil {
		return nil, err
	}
	object.Namespace = d.namespace
	return d.update(ctx, updated.Name, rest.DefaultUpdatedObjectInfo(object), options)
}

// Patch knows merge patches that set something.
func (d insideDevices) Patch(ctx context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*fleetv1.Device, error) {
	merge := func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		patched, err := d.external(old.DeepCopyObject(), nil)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(data, patched); err != nil {
			return nil, err
		}
		return d.internal(patched)
	}
	return d.update(ctx, name, rest.DefaultUpdatedObjectInfo(nil, merge), metav1.UpdateOptions{})
}

func (d insideDevices) update(ctx context.Context, name string, info rest.UpdatedObjectInfo, options metav1.UpdateOptions) (*fleetv1.Device, error) {
	store, err := d.store()
	if err != nil {
		return nil, err
	}
	object, _, err := store.Update(genericapirequest.WithNamespace(ctx, d.namespace), name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &options)
	return d.external(object, err)
}

func (d insideDevices) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	store, err := d.store()
	if err != nil {
		return err
	}
	_, _, err = store.Delete(genericapirequest.WithNamespace(ctx, d.namespace), name, rest.ValidateAllObjectFunc, &options)
	return err
}

// internal is what the storage stores, with its defaults, and shares nothing with the
// object.
func (in *inside) internal(object *fleetv1.Device) (*fleet.Device, error) {
	object = object.DeepCopy()
	in.scheme.Default(object)
	out := &fleet.Device{}
	return out, in.scheme.Convert(object, out, nil)
}

// external is what clients know, which may share memory with the object.
func (in *inside) external(object runtime.Object, err error) (*fleetv1.Device, error) {
	if err != nil {
		return nil, err
	}
	// Watchers of one object get it in a common wrapping, which encodes it once.
	if shared, ok := object.(runtime.CacheableObject); ok {
		object = shared.GetObject()
	}
	if _, ok := object.(*fleet.Device); !ok {
		return nil, fmt.Errorf("a %T instead of a device", object)
	}
	out := &fleetv1.Device{}
	return out, in.scheme.Convert(object, out, nil)
}
