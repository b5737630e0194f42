// SPDX-License-Identifier: Apache-2.0

package listcache

import (
	"bytes"
	"errors"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// A batch of missing items, which are encoded at once, has at most so many, but for its
// last part.
const (
	batchItems = 128
	batchBytes = 1 << 20 // of the objects, in memory
)

// templateEncoder gets the frame and the missing items of a list, in batches, from the
// server's own encoder.
type templateEncoder struct {
	stock encode
	// subset returns the list with only the items at the given positions.
	subset func(positions []int) (runtime.Object, error)
	// store keeps chunks as they are made; nil if nothing is kept. compressed: the list
	// is likely to be sent compressed.
	store      *Store
	compressed bool
	// whole: the list is written of chunks whether there is room to keep them or not.
	whole bool
	// later: the list is written once, so that chunks may be made meanwhile.
	later bool
	// buffer and positions are reused for each batch.
	buffer    bytes.Buffer
	positions []int
}

// subsetOf returns the subset of a list whose items are a slice.
func subsetOf(list runtime.Object, items reflect.Value) func([]int) (runtime.Object, error) {
	whole := reflect.ValueOf(list)
	return func(positions []int) (runtime.Object, error) {
		fewer := reflect.New(whole.Type().Elem())
		fewer.Elem().Set(whole.Elem())
		made := fewer.Interface().(runtime.Object)
		into, ok := itemsOf(made)
		if !ok {
			return nil, errFrame
		}
		chosen := reflect.MakeSlice(into.Type(), len(positions), len(positions))
		for i, at := range positions {
			chosen.Index(i).Set(items.Index(at))
		}
		into.Set(chosen)
		return made, nil
	}
}

// encodedBy returns an object's encoding.
func encodedBy(encode encode, o runtime.Object) ([]byte, error) {
	var b bytes.Buffer
	err := encode(o, &b)
	return b.Bytes(), err
}

// encoded returns the encoding of the list with these of its items only. The
// encoding is valid until the next call.
func (t *templateEncoder) encoded(positions ...int) ([]byte, error) {
	list, err := t.subset(positions)
	if err != nil {
		return nil, err
	}
	t.buffer.Reset()
	if err := t.stock(list, &t.buffer); err != nil {
		return nil, err
	}
	return t.buffer.Bytes(), nil
}

// learn returns the frame of the list.
func (t *templateEncoder) learn(s syntax) (*frame, error) {
	empty, err := t.encoded()
	if err != nil {
		return nil, err
	}
	empty = slices.Clone(empty)
	one, err := t.encoded(0)
	if err != nil {
		return nil, err
	}
	frame, ok := newFrame(s, empty, one)
	if !ok {
		return nil, errFrame
	}
	return frame, nil
}

// assemble learns the frame of the list and makes the chunks that are missing; later:
// while the list is written.
func (t *templateEncoder) assemble(f *format, parts []part, later bool) (*assembly, error) {
	frame, err := t.learn(f.syntax)
	if err != nil {
		return nil, err
	}
	a := &assembly{format: f, frame: frame, parts: parts}
	if later {
		a.rest = &deferred{encoder: t}
		return a, nil
	}
	return a, t.complete(a)
}

// complete makes the chunks that are missing, in batches of parts.
func (t *templateEncoder) complete(a *assembly) error {
	last := &a.parts[len(a.parts)-1]
	items, homeless := last.first+len(last.elements), 0
	for begin := 0; begin < len(a.parts); {
		end, without, err := t.batch(a, begin)
		if err != nil {
			return err
		}
		begin = end
		homeless += without
		if homeless == 0 || t.whole {
			continue
		}
		if t.later {
			t.proveSome(a, end)
			if a.format.refused.Load() {
				return errFrame
			}
			if a.format.laterPossible(a.parts) {
				a.rest = &deferred{encoder: t}
				return nil
			}
		}
		if homeless+passing(a.parts[end:]) > items/2 {
			return errRoom
		}
	}
	return nil
}

// batch makes the chunks that are missing from a part on, as many as are encoded at
// once, and returns where the batch ends, and how many items there was no room for.
func (t *templateEncoder) batch(a *assembly, begin int) (end, homeless int, err error) {
	size := int64(0)
	t.positions = t.positions[:0]
	for end = begin; end < len(a.parts) && len(t.positions) < batchItems && size < batchBytes; end++ {
		p := &a.parts[end]
		if p.chunk != nil {
			continue
		}
		for at, e := range p.elements {
			if p.from == nil || p.from[at] < 0 {
				t.positions = append(t.positions, p.first+at)
				size += e.Size
			}
		}
	}
	if err := t.make(a.format, a.frame, a.parts[begin:end]); err != nil {
		return end, 0, err
	}
	homeless = t.keep(a.parts[begin:end], len(a.format.syntax.separator()))
	if homeless > 0 && !t.whole {
		// Others that nobody has would find no room either.
		for i := range a.parts[end:] {
			if p := &a.parts[end+i]; p.previous == nil {
				p.keep = false
			}
		}
	}
	return end, homeless, nil
}

// errRoom: there is no room to keep most of a list, which would be in memory as a whole until
// the client has read it.
var errRoom = errors.New("there is no room for the bytes of a list")

// keep keeps the chunks that were just made, and returns how many items there is no room
// for. For a compressed list, new chunks, and those without room, are kept compressed only.
func (t *templateEncoder) keep(parts []part, separator int) (homeless int) {
	if t.store == nil {
		return 0
	}
	compressed := t.compressed && !t.whole
	if compressed {
		homeless += t.compress(parts, separator, func(p *part) bool { return p.previous == nil })
	}
	without := t.store.keep(parts)
	if without == 0 || !compressed {
		return homeless + without
	}
	return homeless + t.compress(parts, separator, func(*part) bool { return true })
}

// compress keeps the chunks of some parts in compressed form, and returns how many
// items there is no room for.
func (t *templateEncoder) compress(parts []part, separator int, which func(*part) bool) (homeless int) {
	for i := range parts {
		p := &parts[i]
		if !p.keep || !which(p) || t.store.has(p.chunk) {
			continue
		}
		has := p.chunk.content.Load()
		if has.deflated == nil {
			has = &content{deflated: deflate(has.plain[:len(has.plain)-separator])}
		}
		if !t.store.keepCompressed(p.chunk, has.deflated) {
			homeless += len(p.ids)
			p.keep = false
		}
	}
	t.store.share.Settle()
	return homeless
}

// make makes the missing chunks of parts. t.positions are the items without a chunk.
func (t *templateEncoder) make(f *format, frame *frame, parts []part) error {
	var items []byte
	if len(t.positions) > 0 {
		encoded, err := t.encoded(t.positions...)
		if err != nil {
			return err
		}
		var ok bool
		if items, ok = frame.items(encoded); !ok {
			return errFrame
		}
	}
	cutter := cutter{syntax: f.syntax, rest: items}
	next := func(_ *watchcache.Element, to *pieces) error {
		item, ok := cutter.next()
		if !ok {
			return errFrame
		}
		to.add(item)
		to.add(f.syntax.separator())
		return nil
	}
	for i := range parts {
		if p := &parts[i]; p.chunk == nil {
			var err error
			if p.chunk, err = newChunk(f, p, next); err != nil {
				return err
			}
		}
	}
	if len(cutter.rest) > 0 {
		return errFrame
	}
	return nil
}
