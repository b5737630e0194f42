// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-base/tracing"

	"github.com/kube-watchcache/watchcache/cacher/internal/freshness"
	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// reader serves GETs and LISTs.
type reader struct {
	*base
	wrapped
	storage   *follower
	indexes   *match.Indexes
	admission *freshness.Admission
	encodings EncodingStore // of Config.Lists
}

func (r *reader) decide(o *readOptions) decision {
	s := readState{condition: r.condition.load(), reports: r.storage.ReportsProgress()}
	if !o.list { // a GET does not read earlier versions
		if s.condition.silent {
			s.rv = r.state.RV()
		}
		return decide(o, &s)
	}
	s.rv, s.oldest, s.compacted = r.state.Reach()
	s.pinned = r.state
	if compacted := r.config.Storage.CompactRevision(); compacted > 0 && uint64(compacted) > s.compacted {
		s.compacted = uint64(compacted)
		r.state.Compacted(s.compacted)
	}
	return decide(o, &s)
}

// route decides how to answer a GET or LIST. why is the error for the client if neither the cache
// nor storage answers.
func (r *reader) route(o *readOptions) (d decision, why error) {
	d = r.decide(o)
	switch {
	case d.kind == readRefuse && o.list && r.condition.load().phase == blocked:
		// The unlistable object may be outside of this LIST.
		return decision{kind: readDelegate, needsAdmission: true}, r.condition.refusal()
	case d.kind == readRefuse:
		return d, r.condition.refusal()
	case d.needsAdmission:
		return d, errDoubtful
	}
	return d, nil
}

// reroute decides again after the cache failed with err; if nothing changes, the read fails.
// Evicted versions, GETs that timed out and a few consistent LISTs that timed out go to storage.
func (r *reader) reroute(ctx context.Context, o *readOptions, d decision, err error) (again decision, why error) {
	switch {
	case errors.Is(err, tasks.ErrStopped):
		return decision{kind: readRefuse}, r.condition.refusal()
	case errors.Is(err, watchcache.ErrExpired), errors.Is(err, watchcache.ErrCompacted):
		return decision{kind: readDelegate}, err
	case errors.Is(err, watchcache.ErrFuture):
		// A restored history does not have this version.
		return d, tooLargeError(d.rv, r.state.RV())
	case ctx.Err() != nil:
		return d, err
	case errors.Is(err, context.DeadlineExceeded) && d.kind == readConsistent:
		return d, awayStatus(errOwnTime) // the client still waits, see freshness.BeforeDeadline
	case errors.Is(err, context.DeadlineExceeded):
		return d, tooLargeError(d.rv, r.waiting.At()) // as above
	case !o.list:
		return decision{kind: readDelegate, afterWait: true}, err
	case d.kind == readConsistent:
		return decision{kind: readDelegate, needsAdmission: true}, err
	}
	return d, err
}

// elsewhere answers a read from storage or with why, and counts it. It returns how it answered,
// which may differ from d.
func (r *reader) elsewhere(ctx context.Context, o *readOptions, d decision, why error, fromStorage func(context.Context) error) (metrics.Decision, error) {
	if isCacheOnly(ctx) {
		return d.kind, errNotCached
	}
	if d.needsAdmission {
		leave := r.admission.Enter()
		if leave == nil {
			r.metrics.FallbackRead(metrics.FallbackReadRefused)
			r.metrics.Read(o.verb(), readRefuse)
			return readRefuse, refusedError(why.Error(), r.condition.load().retryAfter(r.time.Now()))
		}
		defer leave()
	}
	if d.needsAdmission || d.afterWait {
		r.metrics.FallbackRead(metrics.FallbackReadFromStorage)
	}
	r.metrics.Read(o.verb(), d.kind)
	if d.kind != readDelegate {
		return d.kind, why
	}
	return d.kind, r.storage.read(ctx, fromStorage)
}

func (o *readOptions) verb() metrics.Verb {
	if o.list {
		return metrics.VerbList
	}
	return metrics.VerbGet
}

func (r *reader) fresh(ctx context.Context, d decision) error {
	if d.kind != readConsistent && d.rv <= r.waiting.At() {
		return nil
	}
	ctx, cancel := freshness.BeforeDeadline(ctx)
	defer cancel()
	if d.kind != readConsistent {
		return r.waiting.Wait(ctx, d.rv)
	}
	version, err := r.versions.Current(ctx)
	if err != nil {
		return err
	}
	return r.waiting.WaitFor(ctx, version.Current, freshness.Limit{
		Timeout: r.config.FreshnessTimeout, Since: version.Since, Patient: true,
	})
}

// revisionTimeout limits endOfRevision.
const revisionTimeout = 50 * time.Millisecond

// endOfRevision waits briefly for the end of an open revision, because a client that received one
// of its events expects to read it.
func (r *reader) endOfRevision(ctx context.Context, quiet bool) {
	if rv := r.state.Unfinished(); rv != 0 {
		_ = r.waiting.WaitFor(ctx, rv, freshness.Limit{Timeout: revisionTimeout, Quiet: quiet})
	}
}

func (r *reader) snapshot(ctx context.Context, d decision) (*watchcache.Snapshot, error) {
	if err := r.fresh(ctx, d); err != nil {
		return nil, err
	}
	if d.kind == readExact || d.kind == readContinue {
		snapshot, err := r.state.AtUntil(ctx.Done(), d.rv)
		if errors.Is(err, watchcache.ErrStopped) {
			return nil, ctx.Err()
		}
		return snapshot, err
	}
	if d.kind == readLatest && d.rv == 0 {
		r.endOfRevision(ctx, true)
	}
	return r.state.Latest(), nil
}

// Callers get a copy of the top level of each object: of the struct, including its metadata, or of
// the content and metadata maps of an unstructured object.

// copyObject sets into to a copy of the element's object, deep if private.
func copyObject(into reflect.Value, e *watchcache.Element, private bool) error {
	want := reflect.PointerTo(into.Type())
	object := e.Object
	if private {
		object = object.DeepCopyObject()
	} else if _, ok := object.(runtime.Unstructured); ok {
		object = shallowCopy(object)
	}
	if reflect.TypeOf(object) != want {
		return wrongTypeError(object, want)
	}
	into.Set(reflect.ValueOf(object).Elem())
	return nil
}

// copyChunk is the number of objects that copyItems looks up before it copies them, to overlap
// memory reads.
const copyChunk = 32

// copyItems sets items to copies of the elements' objects. items is never nil, so that an empty
// list encodes as one.
func copyItems(items reflect.Value, elements []*watchcache.Element) error {
	slice := reflect.MakeSlice(items.Type(), len(elements), len(elements))
	if len(elements) == 0 {
		items.Set(slice)
		return nil
	}
	want := reflect.PointerTo(items.Type().Elem())
	_, own := elements[0].Object.(runtime.Unstructured) // like all others
	var objects [copyChunk]reflect.Value
	for done := 0; done < len(elements); done += copyChunk {
		chunk := elements[done:min(done+copyChunk, len(elements))]
		for i, e := range chunk {
			object := e.Object
			if own {
				object = shallowCopy(object)
			}
			if reflect.TypeOf(object) != want {
				return wrongTypeError(object, want)
			}
			objects[i] = reflect.ValueOf(object).Elem()
		}
		for i := range chunk {
			slice.Index(done + i).Set(objects[i])
		}
	}
	items.Set(slice)
	return nil
}

func wrongTypeError(object runtime.Object, want reflect.Type) error {
	return fmt.Errorf("the cache holds objects of type %T, not %v", object, want)
}

// shallowCopy copies an unstructured object's content and metadata maps.
func shallowCopy(object runtime.Object) runtime.Object {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object.DeepCopyObject() // of an unknown type
	}
	content := maps.Clone(u.Object)
	if metadata, ok := content["metadata"].(map[string]any); ok {
		content["metadata"] = maps.Clone(metadata)
	}
	return &unstructured.Unstructured{Object: content}
}

const (
	// slowRead is the threshold for logging a read, as in k8s.io/apiserver's handlers.
	slowRead = 500 * time.Millisecond
	// stepRead is the threshold for a step in the request's trace, which the handlers log if slow.
	stepRead = 10 * time.Millisecond
	// timedOf samples GETs that don't wait. Timing takes half as
	// long as such a GET.
	timedOf = 64
)

// observation is the data of one read for metrics, trace and log, without data of objects or
// selectors.
type observation struct {
	// began is on the engine's timeline, which is cheaper to read than the time of day. 0: untimed.
	began time.Duration
	// index is the name of the index, "" for a range of keys.
	index               string
	evaluated, returned int
	// waited is the time spent waiting for a state.
	waited time.Duration
}

// observe starts the timer unless it runs.
func (r *reader) observe(o *observation) {
	if o.began == 0 {
		o.began = max(1, r.time.Now())
	}
}

func (r *reader) gotReady(o *observation) { o.waited = r.time.Now() - o.began }

// observed records the observation in metrics and the request's trace, and logs a slow read.
func (r *reader) observed(ctx context.Context, o *observation, read *readOptions, decision metrics.Decision, err error) {
	took := r.time.Now() - o.began
	r.metrics.ReadTook(read.verb(), decision, took)
	if took < stepRead && !trace.SpanFromContext(ctx).IsRecording() {
		return
	}
	values := []attribute.KeyValue{
		attribute.Bool("list", read.list), attribute.String("took", took.Round(time.Millisecond).String()),
		attribute.String("decision", decision.String()), attribute.String("index", o.index),
		attribute.Int("evaluated", o.evaluated), attribute.Int("returned", o.returned),
		attribute.String("waited", o.waited.Round(time.Millisecond).String()),
	}
	if err != nil {
		values = append(values, attribute.String("error", reasonOf(err)))
	}
	tracing.SpanFromContext(ctx).AddEvent("Read from the watch cache", values...)
	if log := r.journal.V(lifecycleLevel); took >= slowRead && log.Enabled() {
		line := make([]any, 0, 2*len(values))
		for _, v := range values {
			line = append(line, string(v.Key), v.Value.AsInterface())
		}
		log.Info("A slow read", line...)
	}
}
