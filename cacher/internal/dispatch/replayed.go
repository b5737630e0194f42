// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// replayed is the object of initial events and of events from the window. A
// replayed object shares no serialization that an encoder has shuffled, and no Table.
// The API server shuffles so that no client relies on the order of keys. Events
// that the dispatcher delivers are encoded once for all live watchers, shuffled or not.
type replayed struct{ object }

var _ runtime.CacheableObject = (*replayed)(nil)

// CacheEncode implements runtime.CacheableObject.
func (o *replayed) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	if shuffles(string(id)) || isTable(string(id)) {
		o.encodings.metrics.Encoded(false)
		return encode(o.GetObject(), w)
	}
	return o.object.CacheEncode(id, encode, w)
}

// shuffles reports whether the encoder with the identifier may write the keys of maps in
// another order each time. If CBOR is served, its encoder does, under the same identifier
// as the deterministic one; no other format has such an encoder
// (runtime.NondeterministicEncoder). The identifiers of versions, tables and watches are
// JSON in JSON, with CBOR's in quotes, escaped or not.
func shuffles(id string) bool {
	if !strings.Contains(id, "cbor") { // nearly always, and quick
		return false
	}
	return id == "cbor" || strings.Contains(id, `"cbor"`) || strings.Contains(id, `"cbor\`)
}
