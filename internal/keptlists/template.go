// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"bytes"
	"io"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// Limits of a batch of missing items, which its last part may exceed.
const (
	batchItems = 128
	batchBytes = 128 << 10 // of the objects, in memory
)

// templateEncoder obtains the frame and the missing items of a list from the server's encoder.
type templateEncoder struct {
	stock encode
	// subset returns the list with only the items at the given positions.
	subset func(positions []int) (runtime.Object, error)
	buffer bytes.Buffer // reused for each batch
}

// subsetOf returns the subset function of a list whose items are the elements.
func subsetOf(list runtime.Object, elements []*watchcache.Element) func([]int) (runtime.Object, error) {
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
			chosen.Index(i).Set(reflect.ValueOf(elements[at].Object).Elem())
		}
		into.Set(chosen)
		return made, nil
	}
}

func upTo(items int) []int {
	all := make([]int, items)
	for i := range all {
		all[i] = i
	}
	return all
}

func (t *templateEncoder) whole(items int) encodeTo {
	return func(w io.Writer) error {
		list, err := t.subset(upTo(items))
		if err != nil {
			return err
		}
		return t.stock(list, w)
	}
}

// encoded returns the encoding of the list with only these items, valid until the next call.
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

// batch makes the missing chunks of one batch, beginning at a part, and keeps those worth it.
func (a *assembly) batch(begin int) error {
	var missing []*part
	var positions []int
	size, end := int64(0), begin
	if a.parts[begin].keep {
		a.format.making.Lock()
		defer a.format.making.Unlock()
	}
	for ; end < len(a.parts) && len(positions) < batchItems && size < batchBytes; end++ {
		p := &a.parts[end]
		if p.chunk == nil && p.keep {
			a.store.mu.RLock() // another list may have made it since lookUp
			p.chunk, _ = a.store.find(place{a.format, p.elements[0].Key}, p.ids)
			a.store.mu.RUnlock()
		}
		if p.chunk != nil {
			continue
		}
		missing = append(missing, p)
		for at, e := range p.elements {
			if p.from == nil || p.from[at] < 0 {
				positions = append(positions, p.first+at)
				size += e.Size
			}
		}
	}
	if err := a.make(missing, positions); err != nil {
		return err
	}
	if !a.store.keep(missing) {
		// There is no room for further new chunks either.
		for i := range a.parts[end:] {
			if p := &a.parts[end+i]; p.previous == nil && p.chunk == nil {
				p.keep = false
			}
		}
	}
	return nil
}

// make makes the chunks of parts from the items encoded at positions.
func (a *assembly) make(parts []*part, positions []int) error {
	cutter := cutter{syntax: a.format.syntax}
	if len(positions) > 0 {
		encoded, err := a.items.encoded(positions...)
		if err != nil {
			return err
		}
		var ok bool
		if cutter.rest, ok = a.frame.items(encoded); !ok {
			return errFrame
		}
	}
	next := func(_ *watchcache.Element, to *pieces) error {
		item, ok := cutter.next()
		if !ok {
			return errFrame
		}
		to.add(item)
		to.add(cutter.syntax.separator())
		return nil
	}
	for _, p := range parts {
		var err error
		if p.chunk, err = newChunk(a.format, p, next); err != nil {
			return err
		}
		if a.compressed && p.keep {
			plain := p.chunk.content.Load().plain
			p.chunk.content.Store(&content{plain: plain, deflated: p.chunk.deflate(plain)})
		}
	}
	if len(cutter.rest) > 0 {
		return errFrame
	}
	return nil
}
