// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// GetList implements storage.Interface. The items share what is below their
// top level with the cache.
func (c *Cacher) GetList(ctx context.Context, key string, opts storage.ListOptions, into runtime.Object) error {
	e := c.enter()
	defer c.leave()
	return e.list(ctx, key, opts, into)
}

func (c *engine) list(ctx context.Context, key string, opts storage.ListOptions, into runtime.Object) error {
	prepared, err := storage.PrepareKey(c.config.ResourcePrefix, key, opts.Recursive)
	if err != nil {
		return err
	}
	items, err := itemsOf(into)
	if err != nil {
		return err
	}
	o, err := c.listOptions(prepared, opts)
	if err != nil {
		return err
	}
	d := decide(o, c.readState(o))
	if d.kind == readRefuse && c.warm(ctx) {
		d = decide(o, c.readState(o))
	}
	switch d.kind {
	case readRefuse:
		c.metrics.Read("list", readRefuse.String())
		return c.readiness.refusal()
	case readDelegate:
		c.metrics.Read("list", readDelegate.String())
		return c.config.Storage.GetList(ctx, key, opts, into)
	}
	snapshot, err := c.snapshot(ctx, d)
	if err != nil {
		return c.fallback("list", d, err, func() error {
			return c.config.Storage.GetList(ctx, key, opts, into)
		})
	}
	c.metrics.Read("list", d.kind.String())

	s := newSelected(prepared, opts.Recursive, opts.Predicate)
	page := newPage(&s, d)
	evaluated := page.collect(c, snapshot, &s)
	c.metrics.Listed(evaluated, len(page.elements))
	if err := fill(items, page.elements); err != nil {
		return err
	}
	token, remaining, err := page.rest(snapshot, &s, opts)
	if err != nil {
		return err
	}
	if err := c.config.Versioner.UpdateList(into, snapshot.RV(), token, remaining); err != nil {
		return err
	}
	opts.Predicate.SetShardInfoOnList(into)
	return nil
}

// page collects the elements of one page of a list.
type page struct {
	from     string
	limit    int64 // 0: no limit
	elements []*watchcache.Element
	// more: the page is full, and keys follow in the range that was read. As in
	// etcd's storage, nobody has looked whether any of them is selected.
	more bool
}

func newPage(s *selected, d decision) *page {
	p := &page{from: d.from}
	if d.limited {
		p.limit = s.predicate.Limit
	}
	return p
}

// collect fills the page and returns how many elements it looked at. What it
// collects may be shared with others.
func (p *page) collect(c *engine, snapshot *watchcache.Snapshot, s *selected) (evaluated int) {
	if s.everything && s.recursive {
		if p.limit == 0 && p.from == "" && snapshot.Covers(s.key) {
			p.elements = snapshot.All()
			return len(p.elements)
		}
		if p.limit > 0 {
			p.elements = make([]*watchcache.Element, 0, min(p.limit, int64(snapshot.Len())))
		}
	}
	return c.scan(snapshot, s, p.from, p.full, p.add)
}

func (p *page) add(e *watchcache.Element) bool {
	p.elements = append(p.elements, e)
	return true
}

// full is asked when there is one more element.
func (p *page) full() bool {
	p.more = p.limit > 0 && int64(len(p.elements)) == p.limit
	return p.more
}

// rest returns the continue token for the next page, "" after the last one,
// and the number of items it leaves, as far as that is known without
// evaluating a selector.
func (p *page) rest(snapshot *watchcache.Snapshot, s *selected, opts storage.ListOptions) (token string, remaining *int64, err error) {
	if !p.more {
		return "", nil, nil
	}
	count := int64(0)
	if s.everything {
		count = int64(snapshot.Count(s.key, p.from))
	}
	last := p.elements[len(p.elements)-1].Key
	return storage.PrepareContinueToken(last, s.key, int64(snapshot.RV()), count, true, opts)
}

// itemsOf returns a list's items, which must be a slice.
func itemsOf(list runtime.Object) (reflect.Value, error) {
	pointer, err := meta.GetItemsPtr(list)
	if err != nil {
		return reflect.Value{}, err
	}
	items, err := conversion.EnforcePtr(pointer)
	if err != nil {
		return reflect.Value{}, err
	}
	if items.Kind() != reflect.Slice {
		return reflect.Value{}, fmt.Errorf("the items of a %T are %v, want a slice", list, items.Kind())
	}
	return items, nil
}
