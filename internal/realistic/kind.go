// SPDX-License-Identifier: Apache-2.0

// Package realistic creates objects like those of real clusters, with managed fields, for
// measurements and tests. Costs depend on how much objects have in common. Objects are determined
// by their number.
package realistic

import (
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
)

// Kind is a kind of objects, with the codec of its storage.
type Kind struct {
	Name     string
	Resource schema.GroupResource
	// New and NewList return an empty object and an empty list.
	New, NewList func() runtime.Object
	// Make returns the i-th object. Neighbors belong together, like the Pods of a ReplicaSet.
	Make func(i int) runtime.Object
	// Update changes an object made by Make like the n-th write to its status.
	Update func(object runtime.Object, n int)
	Attrs  storage.AttrFunc
	// Codec encodes objects for storage.
	Codec runtime.Codec
}

// Prefix is the key prefix of all kinds.
const Prefix = "/objects/"

// Key returns the storage key of an object.
func Key(object runtime.Object) (string, error) { return storage.NamespaceKeyFunc(Prefix, object) }

// Encode returns the stored form of the i-th object after a number of status updates.
func (k Kind) Encode(i, updates int) ([]byte, error) {
	object := k.Make(i)
	if updates > 0 {
		k.Update(object, updates)
	}
	encoded, err := runtime.Encode(k.Codec, object)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k.Name, err)
	}
	return encoded, nil
}

// Decode decodes a stored object at a resourceVersion.
func (k Kind) Decode(encoded []byte, rv uint64) (runtime.Object, error) {
	object, _, err := k.Codec.Decode(encoded, nil, k.New())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k.Name, err)
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k.Name, err)
	}
	accessor.SetResourceVersion(strconv.FormatUint(rv, 10))
	return object, nil
}

func hex(seed uint64, n int) string {
	const digits = "0123456789abcdef"
	out := make([]byte, n)
	for i := range out {
		seed += 0x9e3779b97f4a7c15
		mixed := (seed ^ seed>>30) * 0xbf58476d1ce4e5b9
		mixed = (mixed ^ mixed>>27) * 0x94d049bb133111eb
		out[i] = digits[(mixed^mixed>>31)>>60]
	}
	return string(out)
}

func uid(seed uint64) string {
	h := hex(seed, 32)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// begin is the creation time of the first object.
const begin = 1_700_000_000

func stampOf(seconds int) metav1.Time { return metav1.Unix(begin+int64(seconds), 0) }

// perOwner is the number of neighbors with the same owner, perNamespace with the same namespace.
const (
	perOwner     = 10
	perNamespace = 200
)
