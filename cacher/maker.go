// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// maker makes what the state holds for objects. A maker is for one goroutine at a
// time.
type maker struct {
	config *Config
	state  *watchcache.State
	warn   func(kind, message string, err error, remedy string)
	names  watchcache.FieldNames
	// sharing is nil unless Config.ShareEqualParts is set.
	sharing *sharing
}

// keyed is an object and its key.
type keyed struct {
	key    string
	object runtime.Object
}

// wrapped is an object of a storage's watch together with the time at which it was
// decoded: storage.WatchEventWithRecordTime, which k8s.io/apiserver has since v0.37.
type wrapped interface {
	runtime.Object
	RecordTime() time.Time
	Unwrap() runtime.Object
}

// key takes what the storage's watch or list brought for an object.
func (m *maker) key(obj any) (keyed, error) {
	if timed, ok := obj.(wrapped); ok {
		obj = timed.Unwrap()
	}
	object, ok := obj.(runtime.Object)
	if !ok {
		return keyed{}, fmt.Errorf("storage brought a %T, which is no runtime.Object", obj)
	}
	key, err := m.config.KeyFunc(object)
	if err != nil {
		return keyed{}, fmt.Errorf("the key of a %T: %w", object, err)
	}
	if prefix := m.config.ResourcePrefix; !strings.HasPrefix(key, prefix) {
		// The object is kept, so that its changes fit and versions go on, but
		// requests for the resource's keys don't reach it.
		m.warn("stray", "An object has a key outside of the resource's prefix. The watch cache does not serve it",
			fmt.Errorf("KeyFunc says that an object of %s has the key %q, which is outside ResourcePrefix %q: it can't be read or watched",
				m.config.GroupResource, key, prefix), "let KeyFunc and ResourcePrefix fit each other, or look at how the object got its name")
	}
	return keyed{key: key, object: object}, nil
}

// element makes what the state holds for an object.
func (m *maker) element(k keyed) (*watchcache.Element, error) {
	config := m.config
	rv, err := config.Versioner.ObjectResourceVersion(k.object)
	if err != nil {
		return nil, fmt.Errorf("the resourceVersion of %q: %w", k.key, err)
	}
	labels, fields, err := config.GetAttrsFunc(k.object)
	if err != nil {
		return nil, fmt.Errorf("the attributes of %q at resourceVersion %d: %w", k.key, rv, err)
	}
	return &watchcache.Element{
		Key: k.key, RV: rv, Object: k.object, Labels: labels,
		Fields: m.names.Compact(fields), Size: sizeOf(k.object, labels),
	}, nil
}

// changed makes the element of a change.
func (m *maker) changed(obj any) (*watchcache.Element, error) {
	k, err := m.key(obj)
	if err != nil {
		return nil, err
	}
	return m.changedElement(k)
}

func (m *maker) changedElement(k keyed) (*watchcache.Element, error) {
	m.sharing.change(m.state, k)
	return m.element(k)
}

// listed makes the element of an object of a list, in which neighbour, unless nil,
// comes before it.
func (m *maker) listed(obj any, neighbour runtime.Object) (*watchcache.Element, error) {
	k, err := m.key(obj)
	if err != nil {
		return nil, err
	}
	m.sharing.listed(m.state, k, neighbour)
	return m.element(k)
}
