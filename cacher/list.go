// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher/internal/freshness"
	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/internal/minors"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// GetList implements storage.Interface. Everything below the top level of the items is shared with
// the cache.
func (r *reader) GetList(ctx context.Context, key string, opts storage.ListOptions, into runtime.Object) error {
	return r.list(ctx, key, opts, into)
}

func (r *reader) list(ctx context.Context, key string, opts storage.ListOptions, into runtime.Object) error {
	key = r.continuedKey(key, opts)
	prepared, err := storage.PrepareKey(r.config.ResourcePrefix, key, opts.Recursive)
	if err != nil {
		return err
	}
	items, err := itemsOf(into)
	if err != nil {
		return err
	}
	if err := selectorRefusal(&opts.Predicate); err != nil {
		return err
	}
	o, err := r.listOptions(prepared, opts)
	if err != nil {
		return err
	}
	var seen observation
	r.observe(&seen)
	answered, err := r.answerList(ctx, &o, storedList{prepared, key, opts, into, items}, &seen)
	r.observed(ctx, &seen, &o, answered, err)
	return err
}

// continuedKey returns the key that a LIST's continue token is relative to. If a field selector
// requires one namespace, a registry narrows the first page of a LIST of all namespaces to that
// namespace's key, so a token without a namespace is relative to it (regression 139).
func (r *reader) continuedKey(key string, opts storage.ListOptions) string {
	if opts.Predicate.Continue == "" || opts.Predicate.Field == nil || !opts.Recursive ||
		strings.TrimSuffix(key, "/")+"/" != r.config.ResourcePrefix {
		return key
	}
	namespace, ok := opts.Predicate.Field.RequiresExactMatch("metadata.namespace")
	if !ok || !r.hasKeyForNamespace(namespace) {
		return key
	}
	start, _, err := storage.DecodeContinue(opts.Predicate.Continue, "")
	if err != nil || strings.Contains(start, "/") {
		return key
	}
	return r.config.ResourcePrefix + namespace
}

// hasKeyForNamespace reports whether keys begin with the resource's prefix and the namespace.
func (r *reader) hasKeyForNamespace(namespace string) bool {
	if len(validation.ValidateNamespaceName(namespace, false)) > 0 {
		return false
	}
	object := r.config.NewFunc()
	accessor, err := meta.Accessor(object)
	if err != nil {
		return false
	}
	accessor.SetNamespace(namespace)
	accessor.SetName("name")
	key, err := r.config.KeyFunc(object)
	return err == nil && key == r.config.ResourcePrefix+namespace+"/name"
}

// storedList holds a LIST's arguments for storage, the prepared key and the items.
type storedList struct {
	prepared, key string
	opts          storage.ListOptions
	into          runtime.Object
	items         reflect.Value
}

func (r *reader) answerList(ctx context.Context, o *readOptions, l storedList, seen *observation) (metrics.Decision, error) {
	fromStorage := func(ctx context.Context) error {
		err := r.config.Storage.GetList(ctx, l.key, l.opts, l.into)
		if err == nil {
			r.encodings.Listed(ctx, l.into, nil)
		}
		return err
	}
	d, why := r.route(o)
	if !d.served() {
		return r.elsewhere(ctx, o, d, why, fromStorage)
	}
	snapshot, err := r.snapshot(ctx, d)
	if err != nil {
		again, why := r.reroute(ctx, o, d, err)
		answered, err := r.elsewhere(ctx, o, again, why, fromStorage)
		if d.kind == readConsistent {
			r.metrics.ConsistentListElsewhere(fallbackOf(again, answered), err)
		}
		return answered, err
	}
	r.gotReady(seen)
	r.metrics.Read(metrics.VerbList, d.kind)
	return d.kind, r.listSnapshot(ctx, snapshot, d, l, seen)
}

func fallbackOf(again decision, answered metrics.Decision) metrics.ListFallback {
	switch {
	case again.kind != readDelegate:
		return metrics.FallbackNone
	case answered == readRefuse:
		return metrics.FallbackRefused
	}
	return metrics.FallbackStorage
}

func (r *reader) listSnapshot(ctx context.Context, snapshot *watchcache.Snapshot, d decision, l storedList, seen *observation) error {
	opts, into := l.opts, l.into
	q := match.NewQuery(l.prepared, opts.Recursive, opts.Predicate)
	page := page{from: d.from}
	if q.Heavy() {
		page.ended = ctx.Done()
	}
	if d.limited {
		page.limit = opts.Predicate.Limit
	}
	scanned := page.collect(r.indexes, snapshot, &q)
	if page.ended != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	seen.index, seen.evaluated, seen.returned = scanned.Index, scanned.Evaluated, len(page.elements)
	r.metrics.Listed(seen.evaluated, seen.returned)
	r.metrics.ReadByIndex(cmp.Or(seen.index, metrics.ByKeys), seen.evaluated)
	copied := page.elements
	omit, admitted := r.encodings.Begin(ctx, into, page.elements)
	if !admitted {
		return refusedError("too many lists are being sent: their memory is bounded", freshness.RetrySeconds)
	}
	if omit {
		copied = nil
	}
	if err := copyItems(l.items, copied); err != nil {
		return err
	}
	token, remaining, err := page.continuation(snapshot, &q, l)
	if err != nil {
		return err
	}
	if token != "" {
		r.state.PinSnapshot(snapshot)
	}
	if err := r.config.Versioner.UpdateList(into, snapshot.RV(), token, remaining); err != nil {
		return err
	}
	opts.Predicate.SetShardInfoOnList(into)
	if !r.encodings.Listed(ctx, into, page.elements) && omit {
		return copyItems(l.items, page.elements)
	}
	return nil
}

type page struct {
	from     string
	limit    int64           // 0: no limit
	ended    <-chan struct{} // stops a heavy scan, nil for other queries
	elements []*watchcache.Element
	// more is true if keys follow a full page, selected or not, as in etcd's storage.
	more bool
}

// collect fills the page. p.elements may be shared with other readers.
func (p *page) collect(indexes *match.Indexes, snapshot *watchcache.Snapshot, q *match.Query) match.Scanned {
	room := int64(firstElements)
	if q.Everything() {
		if p.limit == 0 && p.from == "" && snapshot.Covers(q.Key()) {
			p.elements = snapshot.All()
			return match.Scanned{Evaluated: len(p.elements)}
		}
		if p.limit > 0 {
			room = min(p.limit, int64(snapshot.Len()))
		}
	}
	p.elements = make([]*watchcache.Element, 0, room)
	return indexes.Scan(snapshot, q, p.from, p.full, p.add)
}

// firstElements is the initial capacity of a page without a limit.
const firstElements = 32

func (p *page) add(e *watchcache.Element) bool {
	p.elements = append(p.elements, e)
	return true
}

// full reports whether to stop before the next element.
func (p *page) full() bool {
	p.more = p.limit > 0 && int64(len(p.elements)) == p.limit
	select {
	case <-p.ended:
		return true
	default:
		return p.more
	}
}

// continuation returns the continue token for the next page, or "", and the number of remaining
// items unless there is a selector. The token equals the shipped cacher's byte by byte.
func (p *page) continuation(snapshot *watchcache.Snapshot, q *match.Query, l storedList) (token string, remaining *int64, err error) {
	if !p.more {
		return "", nil, nil
	}
	count := int64(0)
	if q.Everything() {
		count = int64(snapshot.Count(q.Key(), p.from))
	}
	last := p.elements[len(p.elements)-1].Key
	return storage.PrepareContinueToken(last, minors.TokenKey(l.key, l.prepared), int64(snapshot.RV()), count, true, l.opts)
}

// itemsOf returns a list's items, if they are a slice.
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
func (r *reader) listOptions(key string, opts storage.ListOptions) (readOptions, error) {
	if _, _, err := storage.ValidateListOptions(key, r.config.Versioner, opts); err != nil {
		return readOptions{}, err
	}
	rv, err := r.config.Versioner.ParseResourceVersion(opts.ResourceVersion)
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
