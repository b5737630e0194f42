// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1beta1"
)

// devicesPrefix is where the server's devices are in etcd.
const devicesPrefix = registryPrefix + "/" + fleet.GroupName + "/devices/"

// record is one object as etcd has it.
type record struct {
	value []byte
	// revision is that of the last write: the object's resourceVersion.
	revision int64
}

func (fx *fixture) read(ctx context.Context, namespaces []string) (map[string]record, error) {
	response, err := fx.keys.Get(ctx, devicesPrefix, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	records := make(map[string]record, len(response.Kvs))
	for _, kv := range response.Kvs {
		name := strings.TrimPrefix(string(kv.Key), devicesPrefix)
		namespace, _, _ := strings.Cut(name, "/")
		if len(namespaces) == 0 || slices.Contains(namespaces, namespace) {
			records[name] = record{value: kv.Value, revision: kv.ModRevision}
		}
	}
	return records, nil
}

// requireTold waits until a handler was told the present state of each device in
// the namespace, and nothing else of any after that.
func (fx *fixture) requireTold(t *testing.T, o *observer, namespace string) {
	t.Helper()
	eventually(t, "the handler does not know what etcd has", func(ctx context.Context) error {
		records, err := fx.read(ctx, []string{namespace})
		if err != nil {
			return err
		}
		told := map[string]string{}
		for _, n := range o.seen() {
			if told[n.key] = n.resourceVersion(); n.kind == toldDelete {
				delete(told, n.key)
			}
		}
		if len(told) != len(records) {
			return fmt.Errorf("%d objects by what it was told, %d in etcd", len(told), len(records))
		}
		for name, record := range records {
			if want := strconv.FormatInt(record.revision, 10); told[name] != want {
				return fmt.Errorf("%s: it was told %q, etcd has %s", name, told[name], want)
			}
		}
		return nil
	})
}

// requireEqual waits until the store is what etcd has, of all namespaces or of
// those given: the same names, for each the same bytes, and the revision of its
// last write for a resourceVersion. If others write there it may wait in vain.
func (fx *fixture) requireEqual(t *testing.T, store cache.Store, namespaces ...string) {
	t.Helper()
	eventually(t, "the store and etcd differ", func(ctx context.Context) error {
		records, err := fx.read(ctx, namespaces)
		if err != nil {
			return err
		}
		return difference(store, records)
	})
}

// difference says what is not the same in the store as in etcd; nil if all is.
func difference(store cache.Store, records map[string]record) error {
	keys := store.ListKeys()
	if len(keys) != len(records) {
		return fmt.Errorf("%d objects in the store, %d in etcd", len(keys), len(records))
	}
	for name, want := range records {
		obj, ok, err := store.GetByKey(name)
		if err != nil || !ok {
			return fmt.Errorf("%s is in etcd and not in the store (error: %w)", name, err)
		}
		if err := same(obj.(runtime.Object), want); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// same compares an object with what etcd has of it.
func same(obj runtime.Object, want record) error {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	if got := accessor.GetResourceVersion(); got != strconv.FormatInt(want.revision, 10) {
		return fmt.Errorf("resourceVersion %s, etcd has revision %d", got, want.revision)
	}
	got, err := encode(obj)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, want.value) {
		return fmt.Errorf("the store has\n%s\netcd has\n%s", got, want.value)
	}
	return nil
}

// encode gives the bytes that the server stores for an object, which may be a
// device of any version or an unstructured one. The object is not written to.
func encode(obj runtime.Object) ([]byte, error) {
	internal, err := toInternal(obj)
	if err != nil {
		return nil, err
	}
	internal.ResourceVersion = ""
	return runtime.Encode(storageCodec, internal)
}

// toInternal gives a device of any version, or an unstructured one, as an internal
// one of the caller's own.
func toInternal(obj runtime.Object) (*fleet.Device, error) {
	internal := &fleet.Device{}
	switch obj := obj.(type) {
	case *fleet.Device:
		return obj.DeepCopy(), nil
	case *fleetv1.Device:
		return internal, scheme.Convert(obj.DeepCopy(), internal, nil)
	case *v1beta1.Device:
		return internal, scheme.Convert(obj.DeepCopy(), internal, nil)
	case *unstructured.Unstructured:
		raw, err := obj.MarshalJSON()
		if err != nil {
			return nil, err
		}
		return internal, runtime.DecodeInto(storageCodec, raw, internal)
	default:
		return nil, fmt.Errorf("%T is not a device", obj)
	}
}

// number is a resourceVersion as a number, as the API server's own storage has them.
func number(t *testing.T, resourceVersion string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	require.NoError(t, err)
	return n
}
