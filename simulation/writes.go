// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// writeThrough makes a write that a client of the cache asks for. The cache suggests
// its own state of the object to the storage, which may be an old one; the write must
// be made of the latest.
func (d *driver) writeThrough(o Operation) {
	if d.cacher == nil {
		return
	}
	name, attrs := o.What, []string(nil)
	if len(o.Writes) > 0 {
		name, attrs = o.Writes[0].Name, o.Writes[0].Attrs
	}
	key, out := poddata.Prefix+name, &example.Pod{}
	d.history.writes++
	after := poddata.Pod(name, attrs...)
	after.Annotations = map[string]string{writeAnnotation: strconv.Itoa(d.history.writes)}
	// based is the state that the write was made of in the end.
	based := "not found"
	before := d.history.now[name]
	var err error
	switch o.Verb {
	case "create":
		err = d.cacher.Create(context.Background(), key, after.DeepCopy(), out, 0)
	case "update":
		err = d.cacher.GuaranteedUpdate(context.Background(), key, out, false, nil, func(input runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
			based = encode(input)
			return after.DeepCopy(), nil, nil
		}, nil)
	case "delete":
		err = d.cacher.Delete(context.Background(), key, out, nil, func(_ context.Context, object runtime.Object) error {
			based = encode(object)
			return nil
		}, nil, storage.DeleteOptions{})
		after = nil
	}
	if (before == nil) != (o.Verb == "create") {
		if right := map[bool]func(error) bool{true: storage.IsExist, false: storage.IsNotFound}[o.Verb == "create"]; !right(err) {
			d.fail("%s of %s, which can't succeed, ended with %v", o.Verb, name, err)
		}
		return
	}
	if err != nil {
		d.fail("%s of %s failed: %v", o.Verb, name, err)
		return
	}
	if before != nil && based != before.text && len(d.twins) == 0 && !d.lost {
		d.fail("%s of %s was made of %s, and not of %s", o.Verb, name, based, before.text)
		return
	}
	rv, _ := strconv.ParseUint(out.ResourceVersion, 10, 64)
	d.wrote(rv, name, after)
}
