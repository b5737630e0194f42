// SPDX-License-Identifier: Apache-2.0

package fanout

import (
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// replayed is the object of initial events and of events from the window. A
// replayed object does not share serializations that an encoder has shuffled.
// The API server shuffles so that no client relies on the order of keys. Events
// that the dispatcher delivers are encoded once for all, shuffled or not.
type replayed struct{ object }

var _ runtime.CacheableObject = (*replayed)(nil)

// CacheEncode implements runtime.CacheableObject.
func (o *replayed) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	if shuffles(string(id)) {
		o.encodings.metrics.Encoded(false)
		return encode(o.GetObject(), w)
	}
	return o.object.CacheEncode(id, encode, w)
}

// shuffles reports whether the encoder with the identifier may write the keys of
// maps in an order of its own each time. CBOR's does if CBOR is served at all, and
// has the identifier of the one that does not; no other format has such an encoder
// (runtime.NondeterministicEncoder). In the identifiers of versions, tables and
// watches, which are JSON in JSON, CBOR's stands in quotes, escaped or not.
func shuffles(id string) bool {
	if !strings.Contains(id, "cbor") { // nearly always, and quick
		return false
	}
	return id == "cbor" || strings.Contains(id, `"cbor"`) || strings.Contains(id, `"cbor\`)
}
