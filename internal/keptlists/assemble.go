// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"errors"
	"hash/maphash"
	"io"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
)

// errFrame is returned if an encoder's output is not a frame around separated items.
var errFrame = errors.New("the encoder does not put items next to each other as expected")

// errRoom is returned for a protobuf list if most items would be encoded for this request only.
var errRoom = errors.New("there is no room for the bytes of a list")

// assembly is a list about to be written: its frame and the chunks of its items.
type assembly struct {
	format   *format
	store    *Store
	response *compressedWriter
	frame    *frame
	parts    []part
	// items encodes items without a chunk.
	items *templateEncoder
	// compressed is true if the response may be compressed, long if the list exceeds
	// compressedFrom, sending if it is written to a client and not only compared.
	compressed, long, sending bool
}

type encodeTo = func(io.Writer) error

// assemble returns the encoding of a list, or nil if the server's encoder must encode it.
func (e *listEncoder) assemble(list runtime.Object, noted *listing, stock encode) *assembly {
	items, ok := itemsOf(list)
	if !ok || items.Len() < minItems {
		return nil
	}
	if !unchanged(items, noted.elements) {
		return nil
	}
	f := e.serializer.format(formatID{e.Identifier(), reflect.TypeOf(list)}, e.syntax)
	a := f.assemble(noted, &templateEncoder{stock: stock, subset: subsetOf(list, noted.elements)})
	if a != nil {
		noted.release(items)
	}
	return a
}

func (f *format) assemble(noted *listing, t *templateEncoder) *assembly {
	if f.refused.Load() {
		return nil
	}
	a := f.begin(noted, t)
	switch err := a.prepare(); {
	case errors.Is(err, errFrame):
		f.refuse(err)
		return nil
	case err != nil: // the server's encoder will return the error
		return nil
	case !f.prove(a.writePlain, t.whole(len(noted.elements))):
		return nil
	}
	return a
}

// begin looks up the chunks.
func (f *format) begin(noted *listing, t *templateEncoder) *assembly {
	a := &assembly{
		format: f, store: noted.store, response: noted.response, compressed: noted.compressed,
		items: t, parts: cut(noted.elements),
	}
	a.store.lookUp(f, a.parts)
	return a
}

// prepare learns the frame and makes the chunks needed before writing: in protobuf all, since the
// length precedes the items, in JSON enough to see that the list exceeds compressedFrom. The rest
// is made in batches while the list is written.
func (a *assembly) prepare() (err error) {
	if a.futile() {
		return errRoom
	}
	if a.frame, err = a.items.learn(a.format.syntax); err != nil {
		return err
	}
	items, made := -len(a.frame.syntax.separator()), false
	for i := range a.parts {
		p := &a.parts[i]
		if p.chunk == nil {
			if made && a.format.syntax == jsonSyntax && items > compressedFrom {
				break
			}
			if err := a.batch(i); err != nil {
				return err
			}
			if made = true; a.futile() {
				return errRoom
			}
		}
		items += p.chunk.length()
	}
	a.long = len(a.beginning())+items+len(a.frame.tail) > compressedFrom
	return nil
}

// futile reports whether to use the server's encoder, i.e. in protobuf if most items must be
// encoded and won't be kept.
func (a *assembly) futile() bool {
	items, passing := 0, 0
	for i := range a.parts {
		p := &a.parts[i]
		items += len(p.ids)
		if !p.keep {
			passing += p.lacks
		}
	}
	return a.format.syntax != jsonSyntax && passing > items/2
}

func (f *format) refuse(why error) {
	if f.refused.CompareAndSwap(false, true) {
		klog.ErrorS(why, "Kept bytes can't be used for lists of one format; each is encoded again for every request. Report it with the type of the list, please",
			"list", f.id.list, "encoder", f.id.encoder)
	}
}

// prove compares the first assembled list with the output of the server's encoder and refuses the
// format if they differ. Concurrent lists wait for the comparison.
func (f *format) prove(kept, whole encodeTo) bool {
	if f.proven.Load() && !checkEach {
		return true
	}
	f.proving.Lock()
	defer f.proving.Unlock()
	return f.proveLocked(kept, whole)
}

func (f *format) proveLocked(kept, whole encodeTo) bool {
	if f.refused.Load() || f.proven.Load() && !checkEach {
		return !f.refused.Load()
	}
	ours, servers := newHash(), newHash()
	if kept(ours) != nil || whole(servers) != nil {
		return false
	}
	same := ours.Sum64() == servers.Sum64()
	if !same {
		f.refuse(errors.New("a list put together of kept bytes differs from the same list as the encoder writes it"))
		if checkEach {
			panic("a list put together of kept bytes differs from the encoder's")
		}
	}
	f.proven.Store(same)
	return same
}

// newHash returns a hash to compare lists without holding them. Clients can't construct collisions,
// because its seed is random.
func newHash() *maphash.Hash {
	h := &maphash.Hash{}
	h.SetSeed(seed)
	return h
}

// streamingWrite bounds the first write, in bytes, of apimachinery's streaming encoders. After it,
// the server's response writer delays its decision on compression.
const streamingWrite = 4

func (a *assembly) beginning() []byte {
	items := 0
	if a.frame.syntax == protobufSyntax {
		for i := range a.parts {
			items += a.parts[i].chunk.length()
		}
	}
	return a.frame.beginning(items)
}

// write writes the list, compressed if possible when long.
func (a *assembly) write(w io.Writer) error {
	a.sending = true
	return a.response.write(w, a.beginning(), a.long, a)
}

// writePlain writes the list uncompressed. A first write as short as a streaming encoder's leaves
// the decision on compression to the server.
func (a *assembly) writePlain(w io.Writer) error {
	begin := a.beginning()
	first := min(streamingWrite, len(begin))
	if a.frame.syntax == jsonSyntax {
		first = min(1, first)
	}
	if _, err := w.Write(begin[:first]); err != nil {
		return err
	}
	if _, err := w.Write(begin[first:]); err != nil {
		return err
	}
	return a.writeItems(w)
}

func (a *assembly) writeItems(w io.Writer) error {
	for i := range a.parts {
		plain, err := a.plain(i)
		if err != nil {
			return err
		}
		if i == len(a.parts)-1 {
			plain = plain[:len(plain)-len(a.frame.syntax.separator())]
		}
		if _, err := w.Write(plain); err != nil {
			return err
		}
		a.release(i)
	}
	_, err := w.Write(a.frame.tail)
	return err
}

// release drops a written part, because the client may read the rest slowly. A compared part that
// isn't kept is made again.
func (a *assembly) release(i int) {
	switch p := &a.parts[i]; {
	case a.sending:
		*p = part{}
	case !p.keep && a.frame.syntax == jsonSyntax:
		p.chunk = nil
	}
}

func (a *assembly) chunk(i int) (*chunk, error) {
	if a.parts[i].chunk == nil {
		if err := a.batch(i); err != nil {
			if errors.Is(err, errFrame) {
				a.format.refuse(err)
			}
			return nil, err
		}
	}
	return a.parts[i].chunk, nil
}

// plain returns the plain bytes of a part and keeps them again if they were evicted.
func (a *assembly) plain(i int) ([]byte, error) {
	c, err := a.chunk(i)
	if err != nil {
		return nil, err
	}
	plain, made, err := c.plain()
	if err == nil && a.sending {
		a.store.usedPlain(c)
		if made {
			a.store.complete(c, content{plain: plain})
		}
	}
	return plain, err
}

// deflated returns the compressed chunk of a part, without its last separator, keeps it, and
// releases the part.
func (a *assembly) deflated(i int) (*deflated, error) {
	c, err := a.chunk(i)
	if err != nil {
		return nil, err
	}
	defer a.release(i)
	has := c.content.Load()
	if has.deflated != nil {
		return has.deflated, nil
	}
	made := c.deflate(has.plain)
	a.store.complete(c, content{deflated: made})
	return made, nil
}
