// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-watchcache/watchcache/storage/capability"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// maker makes the state's elements of objects. It is for one goroutine at a time.
type maker struct {
	config *Config
	state  *watchcache.State
	warn   func(kind, message string, err error, remedy string)
	names  watchcache.FieldNames
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

// key returns an object from storage's watch or list with its key.
func (m *maker) key(obj any) (keyed, error) {
	if timed, ok := obj.(wrapped); ok {
		obj = timed.Unwrap()
	}
	object, ok := obj.(runtime.Object)
	if !ok {
		return keyed{}, faultf(nil, "storage brought a %T, which is no runtime.Object", obj)
	}
	if lost, ok := object.(capability.UnreadObject); ok {
		key, _ := lost.LastState()
		return keyed{key: key, object: object}, nil
	}
	key, err := m.config.KeyFunc(object)
	if err != nil {
		return keyed{}, faultf(err, "the key of a %T", object)
	}
	if prefix := m.config.ResourcePrefix; !strings.HasPrefix(key, prefix) {
		// The object is kept, so that its changes fit and versions go on, but
		// requests for the resource's keys don't reach it.
		m.warn("stray", "An object has a key outside of the resource's prefix. The watch cache does not serve it",
			faultf(keyFaultf(nil, "the key is %q, ResourcePrefix is %q", key, prefix), "KeyFunc gives an object of %s a key outside of ResourcePrefix: it can't be read or watched", m.config.GroupResource), "let KeyFunc and ResourcePrefix fit each other, or look at how the object got its name")
	}
	return keyed{key: key, object: object}, nil
}

// element makes the state's element of an object.
func (m *maker) element(k keyed) (*watchcache.Element, error) {
	config := m.config
	rv, err := config.Versioner.ObjectResourceVersion(k.object)
	if err != nil {
		return nil, faultf(keyFaultf(err, "%q", k.key), "the resourceVersion")
	}
	if lost, ok := k.object.(capability.UnreadObject); ok {
		return m.lastElement(lost, rv)
	}
	labels, fields, err := config.GetAttrsFunc(k.object)
	if err != nil {
		return nil, faultf(keyFaultf(err, "%q", k.key), "the attributes at resourceVersion %d", rv)
	}
	return &watchcache.Element{
		Key: k.key, RV: rv, Object: k.object, Labels: labels,
		Fields: m.names.Compact(fields), Size: sizeOf(k.object, labels),
	}, nil
}

// lastElement makes the element of a deletion at the resourceVersion rv from the last
// state that the cache has. Without one the state refuses the deletion, unless it has
// seen it before.
func (m *maker) lastElement(lost capability.UnreadObject, rv uint64) (*watchcache.Element, error) {
	key, of := lost.LastState()
	last, _ := m.state.Get(key)
	switch {
	case last == nil:
		return &watchcache.Element{Key: key, RV: rv, Object: m.config.NewFunc()}, nil
	case last.RV != of:
		return nil, faultf(keyFaultf(watchcache.ErrGap, "%q", key),
			"storage can't read what was deleted at resourceVersion %d as of resourceVersion %d, and the cache has it as of %d", rv, of, last.RV)
	}
	object := last.Object.DeepCopyObject()
	if err := m.config.Versioner.UpdateObject(object, rv); err != nil {
		return nil, faultf(keyFaultf(err, "%q", key), "the resourceVersion")
	}
	return &watchcache.Element{Key: key, RV: rv, Object: object, Labels: last.Labels, Fields: last.Fields, Size: last.Size}, nil
}

// elementOf makes the element of an object that the storage's watch or list brought.
func (m *maker) elementOf(obj any) (*watchcache.Element, error) {
	k, err := m.key(obj)
	if err != nil {
		return nil, err
	}
	return m.element(k)
}
