// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"io"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher/internal/listcache"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// initial is the object of an initial event. Initial events share serializations by
// runs; an event outside a run shares its own, like other replayed events.
type initial struct {
	replayed
	run *listcache.Run
	at  int
}

var _ runtime.CacheableObject = (*initial)(nil)

// CacheEncode implements runtime.CacheableObject.
func (o *initial) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	if !shuffles(string(id)) && !isTable(string(id)) {
		known, ok, err := o.run.Write(o.at, string(id), func(e *watchcache.Element, w io.Writer) error {
			return encode(e.Object.DeepCopyObject(), w)
		}, w)
		if ok {
			o.encodings.metrics.Encoded(known)
			return err
		}
	}
	return o.replayed.CacheEncode(id, encode, w)
}

// initial calls send with the initial events of a run, which may be nil, one after the
// other, until send returns false.
func (c *converter) initial(r *listcache.Run, send func(watch.Event) bool) {
	if r == nil {
		return
	}
	elements := r.Elements()
	objects := make([]initial, len(elements))
	for i, e := range elements {
		objects[i] = initial{replayed: replayed{c.object(e)}, run: r, at: i}
		if !send(watch.Event{Type: watch.Added, Object: &objects[i]}) {
			return
		}
	}
}
