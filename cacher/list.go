// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"cmp"
	"context"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// GetList implements storage.Interface. Everything below the top level of the
// items is shared with the cache.
func (c *Cacher) GetList(ctx context.Context, key string, opts storage.ListOptions, into runtime.Object) error {
	e := c.lifecycle.acquire(ctx, wokenByList)
	defer c.lifecycle.release()
	err := e.list(ctx, key, opts, into)
	if err == nil {
		e.config.Lists.want(ctx, into)
	}
	return err
}

func (e *engine) list(ctx context.Context, key string, opts storage.ListOptions, into runtime.Object) error {
	prepared, err := storage.PrepareKey(e.config.ResourcePrefix, key, opts.Recursive)
	if err != nil {
		return badKeyError(err)
	}
	items, err := itemsOf(into)
	if err != nil {
		return err
	}
	o, err := e.listOptions(prepared, opts)
	if err != nil {
		return err
	}
	seen := observation{name: spanList}
	ctx = e.observe(ctx, &seen)
	answered, err := e.answerList(ctx, &o, storedList{prepared, key, opts, into, items}, &seen)
	e.observedRead(ctx, &seen, metrics.VerbList, answered, err)
	return err
}

// storedList is a LIST: its key as the cache has it, and what storage is to be
// asked.
type storedList struct {
	prepared, key string
	opts          storage.ListOptions
	into          runtime.Object
	items         reflect.Value
}

// answerList answers a LIST, and returns by which decision it did.
func (e *engine) answerList(ctx context.Context, o *readOptions, l storedList, seen *observation) (metrics.Decision, error) {
	fromStorage := func(ctx context.Context) error { return e.config.Storage.GetList(ctx, l.key, l.opts, l.into) }
	d, why := e.route(ctx, o)
	if !d.served() {
		return e.elsewhere(ctx, o, d, why, fromStorage)
	}
	snapshot, err := e.snapshot(ctx, d)
	if err != nil {
		again, why := e.reroute(ctx, o, d, err)
		answered, err := e.elsewhere(ctx, o, again, why, fromStorage)
		if d.kind == readConsistent {
			e.metrics.ConsistentListElsewhere(fallbackOf(again, answered), err)
		}
		return answered, err
	}
	e.gotReady(seen)
	e.metrics.Read(metrics.VerbList, d.kind)
	return d.kind, e.listSnapshot(ctx, snapshot, d, l, seen)
}

// fallbackOf returns what metrics call a decision that was made because the cache
// could not serve a consistent LIST, and was answered so.
func fallbackOf(again decision, answered metrics.Decision) metrics.ListFallback {
	switch {
	case again.kind != readDelegate:
		return metrics.FallbackNone
	case answered == readRefuse:
		return metrics.FallbackRefused
	}
	return metrics.FallbackStorage
}

// listSnapshot answers a LIST from a snapshot.
func (e *engine) listSnapshot(ctx context.Context, snapshot *watchcache.Snapshot, d decision, l storedList, seen *observation) error {
	opts, into := l.opts, l.into
	q := match.NewQuery(l.prepared, opts.Recursive, opts.Predicate)
	page := newPage(opts.Predicate.Limit, d)
	scanned := page.collect(e.indexes, snapshot, &q)
	seen.index, seen.evaluated, seen.returned = scanned.Index, scanned.Evaluated, len(page.elements)
	e.metrics.Listed(seen.evaluated, seen.returned)
	e.metrics.ReadByIndex(cmp.Or(seen.index, metrics.ByKeys), seen.evaluated)
	copied := page.elements
	answering := e.config.Lists.answering(ctx, e, into)
	if answering != nil && answering.Omit {
		copied = nil
	}
	if err := copyItems(l.items, copied); err != nil {
		return err
	}
	token, remaining, err := page.rest(snapshot, &q, opts)
	if err != nil {
		return err
	}
	if token != "" {
		e.state.Keep(snapshot)
	}
	if err := e.config.Versioner.UpdateList(into, snapshot.RV(), token, remaining); err != nil {
		return err
	}
	opts.Predicate.SetShardInfoOnList(into)
	if answering != nil && !answering.Complete(page.elements) && answering.Omit {
		return copyItems(l.items, page.elements)
	}
	e.config.Lists.note(ctx, into, page, e.lists)
	return nil
}

// page collects the elements of one page of a list.
type page struct {
	from     string
	limit    int64 // 0: no limit
	elements []*watchcache.Element
	// more: the page is full, and keys follow in the range that was read. Whether
	// any of them is selected is not known, as in etcd's storage.
	more bool
}

func newPage(limit int64, d decision) *page {
	p := &page{from: d.from}
	if d.limited {
		p.limit = limit
	}
	return p
}

// collect fills the page and returns what it looked at. The
// collected elements may be shared with other readers.
func (p *page) collect(indexes *match.Indexes, snapshot *watchcache.Snapshot, q *match.Query) match.Scanned {
	if q.Everything() {
		if p.limit == 0 && p.from == "" && snapshot.Covers(q.Key()) {
			p.elements = snapshot.All()
			return match.Scanned{Evaluated: len(p.elements)}
		}
		if p.limit > 0 {
			p.elements = make([]*watchcache.Element, 0, min(p.limit, int64(snapshot.Len())))
		}
	}
	return indexes.Scan(snapshot, q, p.from, p.full, p.add)
}

// firstElements is the room for elements that a page without a limit begins with.
const firstElements = 32

func (p *page) add(e *watchcache.Element) bool {
	if p.elements == nil {
		p.elements = make([]*watchcache.Element, 0, firstElements)
	}
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
func (p *page) rest(snapshot *watchcache.Snapshot, q *match.Query, opts storage.ListOptions) (token string, remaining *int64, err error) {
	if !p.more {
		return "", nil, nil
	}
	count := int64(0)
	if q.Everything() {
		count = int64(snapshot.Count(q.Key(), p.from))
	}
	last := p.elements[len(p.elements)-1].Key
	return storage.PrepareContinueToken(last, q.Key(), int64(snapshot.RV()), count, true, opts)
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

// listOptions parses the options of a LIST. Malformed ones fail as in storage.
func (e *engine) listOptions(key string, opts storage.ListOptions) (readOptions, error) {
	if _, _, err := storage.ValidateListOptions(key, e.config.Versioner, opts); err != nil {
		return readOptions{}, err
	}
	rv, err := e.config.Versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return readOptions{}, err
	}
	o := readOptions{
		list: true, recursive: opts.Recursive,
		unset: opts.ResourceVersion == "", rv: rv, match: opts.ResourceVersionMatch,
		limit: opts.Predicate.Limit, selective: !match.IsEmpty(opts.Predicate),
	}
	if opts.Recursive && opts.Predicate.Continue != "" {
		o.continues = true
		o.continueKey, o.continueRV, err = storage.DecodeContinue(opts.Predicate.Continue, key)
		if err != nil {
			return readOptions{}, fmt.Errorf("continue: %w", err)
		}
	}
	return o, nil
}
