// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/component-base/tracing"
	utiltrace "k8s.io/utils/trace"

	"github.com/kube-watchcache/watchcache/metrics"
)

const (
	// slowRead is from when on a read is logged, as by the handlers of
	// k8s.io/apiserver.
	slowRead = 500 * time.Millisecond
	// stepRead is from when on a read is a step of its request's trace, which is
	// logged if the request is slow as a whole.
	stepRead = 10 * time.Millisecond
	// timedOf: one in so many GETs that wait for nothing is timed. Reading the clock
	// twice and recording the time takes half as long as such a GET.
	timedOf = 64
)

// The names of spans and of their attributes. No attribute has a name, a key, a
// label or a value of a selector.
const (
	spanGet   = "watchcache.Get"
	spanList  = "watchcache.List"
	spanWatch = "watchcache.Watch"

	attributeResource  = "watchcache.resource"
	attributeDecision  = "watchcache.decision"
	attributeIndex     = "watchcache.index"
	attributeEvaluated = "watchcache.evaluated"
	attributeReturned  = "watchcache.returned"
	attributeWait      = "watchcache.wait_seconds"
	attributeError     = "watchcache.error"
)

// How a watch begins, in spans.
const (
	watchState  = "state"  // with the initial state
	watchAfter  = "after"  // with the events after a resourceVersion
	watchRefuse = "refuse" // not now (429)
	watchFailed = "failed" // with an ERROR event, or not at all
)

// observation collects the data of one read, or of the start of a watch, for metrics, for
// the trace of its request, and for the log if the read was slow. Without a span it costs
// no allocation.
type observation struct {
	name string
	// began is on the engine's timeline, which is cheaper to read than the time of
	// day, and means something only if timed.
	began    time.Duration
	timed    bool
	decision string
	// index is the index that was read, "" if it was a range of keys.
	index               string
	evaluated, returned int
	// waited is how long it took until there was a state to read from.
	waited time.Duration
	span   *tracing.Span // nil if nobody asks for one
}

// observe begins an observation. The context that it returns has the span, if
// the request is traced.
func (e *engine) observe(ctx context.Context, o *observation) context.Context {
	e.startClock(o)
	if trace.SpanFromContext(ctx).IsRecording() {
		ctx, o.span = tracing.Start(ctx, o.name, attribute.String(attributeResource, e.config.GroupResource.String()))
	}
	return ctx
}

// observesGet reports whether to observe a GET from its beginning: if it may wait, if its
// request is traced, and for a sample of the others.
func observesGet(ctx context.Context, o *readOptions) bool {
	return o.mayWait() || rand.Uint32()%timedOf == 0 || trace.SpanFromContext(ctx).IsRecording()
}

// startClock times the observation from now on, unless it is timed already.
func (e *engine) startClock(o *observation) {
	if !o.timed {
		o.began, o.timed = e.time.Now(), true
	}
}

// gotReady records that there is a state to read from.
func (e *engine) gotReady(o *observation) { o.waited = e.time.Now() - o.began }

// observedRead ends the observation of a GET or a LIST.
func (e *engine) observedRead(ctx context.Context, o *observation, verb metrics.Verb, decision metrics.Decision, err error) {
	took := e.time.Now() - o.began
	e.metrics.ReadTook(verb, decision, took)
	o.decision = decision.String()
	e.tell(ctx, o, took, err)
}

// observedWatch ends the observation of the start of a watch.
func (e *engine) observedWatch(ctx context.Context, o *observation, err error) {
	e.tell(ctx, o, e.time.Now()-o.began, err)
}

// tell writes the observation to the span and to the request's trace, if there are any,
// and to the log if the read was slow.
func (e *engine) tell(ctx context.Context, o *observation, took time.Duration, err error) {
	if o.span != nil {
		span := trace.SpanFromContext(ctx)
		span.SetAttributes(o.attributes(err)...)
		if err != nil && !storage.IsNotFound(err) {
			span.SetStatus(codes.Error, reasonOf(err))
		}
		defer o.span.End(slowRead)
	}
	if took < stepRead {
		return
	}
	if request := utiltrace.FromContext(ctx); request != nil {
		fields := []utiltrace.Field{{Key: attributeResource, Value: e.config.GroupResource.String()}}
		for _, a := range o.attributes(err) {
			fields = append(fields, utiltrace.Field{Key: string(a.Key), Value: a.Value.AsInterface()})
		}
		request.Step(o.name, fields...)
		return
	}
	if log := e.log.V(2); took >= slowRead && log.Enabled() {
		values := []any{"read", o.name, "took", took.Round(time.Millisecond).String()}
		for _, a := range o.attributes(err) {
			values = append(values, strings.TrimPrefix(string(a.Key), "watchcache."), a.Value.AsInterface())
		}
		log.Info("A slow read", values...)
	}
}

func (o *observation) attributes(err error) []attribute.KeyValue {
	attributes := []attribute.KeyValue{
		attribute.String(attributeDecision, o.decision),
		attribute.String(attributeIndex, o.index),
		attribute.Int(attributeEvaluated, o.evaluated),
		attribute.Int(attributeReturned, o.returned),
		attribute.Float64(attributeWait, o.waited.Seconds()),
	}
	if err != nil {
		attributes = append(attributes, attribute.String(attributeError, reasonOf(err)))
	}
	return attributes
}

// reasonOf names the kind of an error, whose text may have the key of an object.
func reasonOf(err error) string {
	switch {
	case storage.IsNotFound(err):
		return "NotFound"
	case errors.Is(err, context.Canceled):
		return "Canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "DeadlineExceeded"
	}
	if reason := apierrors.ReasonForError(err); reason != "" {
		return string(reason)
	}
	return "Error"
}
