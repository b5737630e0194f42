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
	prepared, err := storage.PrepareKey(c.config.ResourcePrefix, key, opts.Recursive)
	if err != nil {
		return err
	}
	o, err := c.listOptions(prepared, opts)
	if err != nil {
		return err
	}
	d := decide(o, c.readState())
	c.metrics.Read("list", d.kind.String())
	fromStorage := func() error { return c.config.Storage.GetList(ctx, key, opts, into) }
	switch d.kind {
	case readRefuse:
		return c.readiness.refusal()
	case readDelegate:
		return fromStorage()
	}
	snapshot, err := c.snapshot(ctx, d)
	if err != nil {
		return c.fallback(d, err, fromStorage)
	}
	return c.list(snapshot, d, prepared, opts, into)
}

// list fills into from a snapshot, of which nothing is locked.
func (c *Cacher) list(snapshot *watchcache.Snapshot, d decision, key string, opts storage.ListOptions, into runtime.Object) error {
	items, err := itemsOf(into)
	if err != nil {
		return err
	}
	s := newSelected(key, opts.Recursive, opts.Predicate)
	page := page{from: d.from}
	if d.limited {
		page.limit = int(opts.Predicate.Limit)
	}
	if s.everything && page.limit == 0 && key == c.config.ResourcePrefix {
		page.elements = make([]*watchcache.Element, 0, snapshot.Len())
	}
	c.scan(snapshot, &s, d.from, page.add)
	fill(items, page.elements)

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
	limit    int // 0: no limit
	elements []*watchcache.Element
	more     bool // there is at least one more element that is selected
}

func (p *page) add(e *watchcache.Element) bool {
	if p.limit > 0 && len(p.elements) == p.limit {
		p.more = true
		return false
	}
	p.elements = append(p.elements, e)
	return true
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

// fill makes the items of exactly the elements' objects: never nil, so that an
// empty list encodes as one.
func fill(items reflect.Value, elements []*watchcache.Element) {
	slice := reflect.MakeSlice(items.Type(), len(elements), len(elements))
	for i, e := range elements {
		slice.Index(i).Set(copyOf(e, false))
	}
	items.Set(slice)
}
