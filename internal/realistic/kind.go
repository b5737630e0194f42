// SPDX-License-Identifier: Apache-2.0

// Package realistic makes objects as clusters have them, with managed fields, for
// measurements and tests: what an object costs depends on how its parts repeat
// those of others. Objects are made from a number, the same ones each time.
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

// Kind is a kind of objects, and how a storage encodes them.
type Kind struct {
	Name     string
	Resource schema.GroupResource
	// New and NewList return an empty object and an empty list.
	New, NewList func() runtime.Object
	// Make returns the i-th object. Neighbours belong together, as the Pods of
	// one ReplicaSet do.
	Make func(i int) runtime.Object
	// Update changes an object that Make has made as the n-th write to its status
	// does.
	Update func(object runtime.Object, n int)
	Attrs  storage.AttrFunc
	// Codec is what a storage encodes objects with.
	Codec runtime.Codec
}

// Prefix is the key prefix of all kinds.
const Prefix = "/objects/"

// Key returns the key of an object.
func Key(object runtime.Object) (string, error) { return storage.NamespaceKeyFunc(Prefix, object) }

// Encode returns the i-th object as a storage has it, after so many writes to
// its status.
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

// Decode returns the object that was encoded, at a resourceVersion, as a storage
// does.
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

// hex returns n hexadecimal digits that depend on the seed.
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

// begin is when the first object was created.
const begin = 1_700_000_000

func stampOf(seconds int) metav1.Time { return metav1.Unix(begin+int64(seconds), 0) }

// perOwner is how many neighbours have one owner, and perNamespace how many are
// in one namespace.
const (
	perOwner     = 10
	perNamespace = 200
)
