// SPDX-License-Identifier: Apache-2.0

package listcache

import (
	"errors"
	"hash/maphash"
	"io"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
)

// errFrame: the server's own encoder does not write the same frame around all items.
var errFrame = errors.New("the encoder does not put items next to each other as expected")

// assembly is a list about to be written: its frame, and the chunks with its items.
type assembly struct {
	format *format
	// store keeps the chunks; nil if the list is only to be compared.
	store    *Store
	response *compressedWriter
	frame    *frame
	parts    []part
	// rest makes the chunks that are missing while the list is written; nil if none
	// is missing.
	rest *deferred
	// once: the list is not written again.
	once bool
}

// assemble returns the encoding of a list, nil if the server's own encoder must encode it.
func (e *listEncoder) assemble(list runtime.Object, noted *listing, stock encode) *assembly {
	items, ok := itemsOf(list)
	if !ok || items.Len() < minItems {
		return nil
	}
	if !unchanged(items, noted.elements) {
		return nil
	}
	f := e.serializer.format(formatID{e.Identifier(), reflect.TypeOf(list)}, e.syntax)
	return f.assemble(noted, &templateEncoder{stock: stock, subset: subsetOf(list, items), later: true}, func(w io.Writer) error { return stock(list, w) })
}

// assemble returns the encoding of a list whose items are those of the note, nil if whole,
// the server's own encoder, must encode it.
func (f *format) assemble(noted *listing, t *templateEncoder, whole func(io.Writer) error) *assembly {
	if f.refused.Load() {
		return nil
	}
	parts := cut(noted.elements)
	t.store, t.compressed = noted.store, noted.compressed
	noted.store.lookUp(f, parts)
	later := t.later && f.laterPossible(parts)
	if passing(parts) > len(noted.elements)/2 && !later {
		return nil
	}
	a, err := t.assemble(f, parts, later)
	switch {
	case errors.Is(err, errFrame):
		f.refuse(err)
		return nil
	case err != nil:
		return nil // and the encoder says so itself, unless there is no room
	case !f.proven.Load() || checkEach:
		if !f.prove(a.writePlain, whole) {
			return nil
		}
	}
	a.store, a.response = noted.store, noted.response
	if a.rest != nil {
		a.rest.whole = whole
	}
	return a
}

// passing returns how many items have to be encoded that are not worth keeping.
func passing(parts []part) (items int) {
	for i := range parts {
		if p := &parts[i]; p.chunk == nil && !p.keep {
			items += p.lacks
		}
	}
	return items
}

func (f *format) refuse(why error) {
	if f.refused.CompareAndSwap(false, true) {
		klog.ErrorS(why, "Kept bytes can't be used for lists of one format; each is encoded again for every request. Report it with the type of the list, please",
			"list", f.id.list, "encoder", f.id.encoder)
	}
}

// prove compares the assembled list with the output of the server's own encoder, and
// refuses the format if they differ.
func (f *format) prove(kept, whole encodeTo) bool {
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

// newHash returns a hash by which lists are compared: a list may be too large to be held.
// Nobody can foresee its seed.
func newHash() *maphash.Hash {
	h := &maphash.Hash{}
	h.SetSeed(seed)
	return h
}

// streamingWrite is the size of the first write of k8s.io/apimachinery's streaming encoders
// at most, in bytes. After so short a write the server's response writer waits for more
// before it compresses or not.
const streamingWrite = 4

// beginning returns the bytes before the items, and the length of the whole list.
func (a *assembly) beginning() (begin []byte, length int) {
	items := -len(a.frame.syntax.separator())
	for i := range a.parts {
		if c := a.parts[i].chunk; c != nil { // of a list with a rest, only that it is long is asked
			items += c.length()
		}
	}
	begin = a.frame.beginning(items)
	return begin, len(begin) + items + len(a.frame.tail)
}

// write writes the list, compressed if the response to w must be.
func (a *assembly) write(w io.Writer) error {
	a.once = !checkEach
	return a.response.write(w, a)
}

// writePlain writes the list. The first write is that of a streaming encoder, so
// that the response is compressed exactly if the encoder's own would be.
func (a *assembly) writePlain(w io.Writer) error {
	begin, _ := a.beginning()
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
	written := 0
	for i := range a.parts {
		p, but := &a.parts[i], 0
		if i == len(a.parts)-1 {
			but = len(a.frame.syntax.separator())
		}
		if p.chunk == nil && a.rest.make(a, i) != nil {
			return a.rest.writeFrom(w, len(a.frame.head)+written)
		}
		written += p.chunk.length()
		plain, err := a.plain(p)
		if err != nil {
			return err
		}
		if _, err := w.Write(plain[:len(plain)-but]); err != nil {
			return err
		}
		a.release(p)
	}
	_, err := w.Write(a.frame.tail)
	return err
}

// release releases a part that was written: a client may take long to read the rest.
func (a *assembly) release(p *part) {
	if a.once {
		*p = part{}
	}
}

// plain returns the plain bytes of a part, and keeps them if they were given up.
func (a *assembly) plain(p *part) ([]byte, error) {
	plain, made, err := p.chunk.plain()
	if err != nil || a.store == nil {
		return plain, err
	}
	a.store.usedPlain(p.chunk)
	if made {
		a.store.complete(p.chunk, content{plain: plain})
	}
	return plain, nil
}
