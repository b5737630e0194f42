// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// The columns of a custom resource are those of its definition, and only the server
// knows which definition a request meets. So the server makes the cells, of the whole
// items, for each Table. Nearly all of the cost of a Table is the objects of its rows:
// their metadata, or all of them. The server is asked for a Table without objects,
// and the objects are put in from what is kept of lists.

// askForCells makes the server write the Table without objects, and not compressed.
// The request is the one that the server has, so that nobody else sees the change:
// the server looks at these after it has read the list. A server that has looked
// before writes a Table with objects, and is found out by that.
func (a *Answer) askForCells() {
	query := a.request.URL.Query()
	query.Set("includeObject", string(metav1.IncludeNone))
	a.request.URL.RawQuery = query.Encode()
	a.request.Header.Del("Accept-Encoding")
}

// ownRequest gives the request a URL and a header that nobody else has.
func (a *Answer) ownRequest() {
	own := *a.request.URL
	a.request.URL = &url.URL{}
	*a.request.URL = own
	a.request.Header = a.request.Header.Clone()
}

// objects returns the objects of the rows, in chunks, which are made whether they
// are worth keeping or not: the server's own encoder of a Table needs several times
// the memory of the whole.
func (f *Fill) objects(elements []*watchcache.Element, from *answerItems) *assembly {
	if from.format.refused.Load() {
		return nil
	}
	parts := cut(elements)
	f.store.lookUp(from.format, parts, false)
	l := &learner{stock: from.encode, subset: from.subset, store: f.store, whole: true}
	made, err := l.assemble(from.format, parts, false)
	if errors.Is(err, errFrame) {
		from.format.refuse(err)
		f.store.forget(from.format)
	}
	if err != nil {
		return nil
	}
	made.store = f.store
	return made
}

const (
	beforeRows  = `"rows":[`
	afterRows   = "]}\n"
	rowCells    = `{"cells":["`
	rowsBetween = ","
)

// rowsIn calls row with each row of a Table in compact JSON, and returns what precedes
// the rows; false if b is not such a Table, or row returns false.
func rowsIn(b []byte, row func([]byte) bool) (head []byte, ok bool) {
	begin := bytes.Index(b, []byte(beforeRows)) // a string of JSON has no such quotes
	if begin < 0 {
		return nil, false
	}
	begin += len(beforeRows)
	for rest := b[begin:]; ; rest = rest[len(rowsBetween):] {
		n := lengthOfJSON(rest)
		if n == 0 || !row(rest[:n]) {
			return nil, false
		}
		if rest = rest[n:]; !bytes.HasPrefix(rest, []byte(rowsBetween)) {
			return b[:begin], string(rest) == afterRows
		}
	}
}

// isRowOf reports whether a row begins as that of an element: with its name.
func isRowOf(row []byte, e *watchcache.Element) bool {
	o, ok := e.Object.(*unstructured.Unstructured)
	if !ok {
		return false
	}
	rest, ok := bytes.CutPrefix(row, []byte(rowCells))
	if !ok {
		return false
	}
	name := o.GetName()
	return len(rest) > len(name) && string(rest[:len(name)]) == name && rest[len(name)] == '"'
}

// withObjects returns the Table of which the server has written the cells, nil if that
// is not a Table of the elements without objects.
func (m *answered) withObjects(cells []byte) *keptTable {
	made := &keptTable{separator: []byte(rowsBetween), metadata: m.list, ends: make([]int, 0, len(m.elements))}
	kept := make([]byte, 0, len(cells))
	head, ok := rowsIn(cells, func(row []byte) bool {
		at := len(made.ends)
		if at == len(m.elements) || !isRowOf(row, m.elements[at]) || !bytes.HasSuffix(row, []byte(noObject)) {
			return false
		}
		kept = append(kept, row[:len(row)-len("null}")]...)
		made.ends = append(made.ends, len(kept))
		return true
	})
	if !ok || len(made.ends) != len(m.elements) {
		return nil
	}
	made.cells, made.frame = kept, &frame{head: bytes.Clone(head), tail: []byte(afterRows)}
	return made
}

// isTable reports whether the Table that the server has written whole is one of the
// elements with the objects that are kept.
func (m *answered) isTable(whole []byte) bool {
	rest := m.list.parts
	var plain []byte
	at := 0
	_, ok := rowsIn(whole, func(row []byte) bool {
		for len(rest) > 0 && at == len(rest[0].elements) {
			rest, at, plain = rest[1:], 0, nil
		}
		if len(rest) == 0 {
			return false
		}
		p := &rest[0]
		if plain == nil {
			var err error
			if plain, err = m.list.plain(p); err != nil {
				return false
			}
		}
		item := p.chunk.item(plain, at)
		before, ok := bytes.CutSuffix(row, []byte(endOfRow))
		if ok {
			before, ok = bytes.CutSuffix(before, item[:len(item)-len(m.list.separator)])
		}
		ok = ok && bytes.HasSuffix(before, []byte(`"object":`)) && isRowOf(row, p.elements[at])
		at++
		return ok
	})
	return ok && len(rest) == 1 && at == len(rest[0].elements)
}
