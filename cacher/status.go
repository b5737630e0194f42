// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
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

// Status describes a cache at one time.
type Status struct {
	// Resource is the resource's name and group.
	Resource string `json:"resource"`
	// Ready reports whether the cache can serve: it has its state, or it sleeps
	// and a request will wake it. For a sleeping cache the fields below are empty,
	// but for the errors.
	Ready bool `json:"ready"`
	// Asleep reports whether the cache sleeps: it has not been used yet, or not
	// for the idle timeout.
	Asleep bool `json:"asleep,omitempty"`
	// NotReady is why the cache is not ready, if that is known.
	NotReady string `json:"notReady,omitempty"`
	// Since is when the cache became ready, or when it ceased to be.
	Since time.Time `json:"since,omitzero"`
	// ResourceVersion is the version that the cache has reached, OldestResourceVersion
	// the lowest that a watch can resume from.
	ResourceVersion       uint64 `json:"resourceVersion"`
	OldestResourceVersion uint64 `json:"oldestResourceVersion"`
	// Objects is how many objects are cached, and ObjectBytes the memory that they
	// take, with all that they refer to. The memory is an estimate: shared memory is
	// counted for each reference.
	Objects     int   `json:"objects"`
	ObjectBytes int64 `json:"objectBytes"`
	// WindowEvents is how many events are kept, and WindowBytes the memory
	// that they take beyond the objects; EncodingBytes is the memory of the
	// serializations that are kept.
	WindowEvents  int   `json:"windowEvents"`
	WindowBytes   int64 `json:"windowBytes"`
	EncodingBytes int64 `json:"encodingBytes"`
	// WindowSamples are up to 64 events of the window at even distances, the
	// oldest and the newest among them, in order.
	WindowSamples []WindowSample `json:"windowSamples,omitempty"`
	// Watches counts the open watches.
	Watches WatchCounts `json:"watches"`
	// Watchers is all open watches, the ones that lag most first; or the page of
	// them that was asked for.
	Watchers []WatcherStatus `json:"watchers"`
	// Ended is watches that have ended since the cache was last awake, the latest
	// first: up to 32 that their clients ended or that reached their deadline, and
	// up to 32 others.
	Ended []EndedWatch `json:"ended,omitempty"`
	// SilenceSeconds is the time since storage's last event, report of progress or
	// answer; 0 if there was none.
	SilenceSeconds float64 `json:"silenceSeconds"`
	// StorageResourceVersion is the highest known version of storage since it was last
	// listed, and StorageAgeSeconds the time since storage has confirmed it. Storage
	// counts the changes of all its resources and returns its version only on request,
	// so the version may be above the cache's although the cache is not behind.
	StorageResourceVersion uint64  `json:"storageResourceVersion"`
	StorageAgeSeconds      float64 `json:"storageAgeSeconds"`
	// Shadow is the share of requests that the cache is compared for in the shadow of the
	// shipped cacher, which answers them (Options.Shadow); 0: the cache serves. Totals has
	// the comparisons.
	Shadow float64 `json:"shadow,omitempty"`
	// Totals has the cache's counts since it was last awake. Several caches of one
	// resource, with the same Metrics, count together.
	Totals Totals `json:"totals"`
	// History has samples of the last ten minutes, every 5 s while the cache was awake,
	// the oldest first.
	History []HistorySample `json:"history,omitempty"`
	// Paused is why the cache can't follow its storage, and since when: storage
	// has a change that it can't deliver or that can't be applied. It is
	// nil while the cache follows.
	Paused *LastError `json:"paused,omitempty"`
	// Lost is why storage is lost, and since when: requests got no answer for the whole
	// of Config.StorageTimeout, and nothing has come from storage since. It is nil
	// while storage is there.
	Lost *LastError `json:"lost,omitempty"`
	// Silent reports whether storage answers requests and does not report the progress of
	// its watch as it should, so that consistent reads are left to it.
	Silent bool `json:"silent,omitempty"`
	// LastError is the last thing that went wrong, nil if nothing did. Errors has
	// the last 16 different ones, the latest first.
	LastError *LastError  `json:"lastError,omitempty"`
	Errors    []LastError `json:"errors,omitempty"`
}

// WindowSample is one event of the window. Events is how many events came between
// the sample before and this one, this one included.
type WindowSample struct {
	ResourceVersion uint64    `json:"resourceVersion"`
	Received        time.Time `json:"received"`
	Events          int       `json:"events"`
}

// Totals holds the counts of a cache.
type Totals = metrics.Totals

// windowSamples is how many events Status.WindowSamples has at most.
const windowSamples = 64

// Status describes the cache as it is now, with all its watchers. It holds
// locks only while it copies, and wakes no cache that sleeps.
func (c *Cacher) Status() Status {
	s, _ := c.StatusPage(WatcherQuery{Limit: -1})
	return s
}

// StatusPage is Status with the watchers of one page. The error names the field
// of the query that is invalid.
func (c *Cacher) StatusPage(q WatcherQuery) (Status, error) {
	if err := q.validate(); err != nil {
		return Status{}, err
	}
	var s Status
	if e := c.lifecycle.current(); e != nil {
		s = e.status(q)
	} else {
		s = Status{Resource: c.config.GroupResource.String(), Ready: c.Ready(), Asleep: true, Watchers: []WatcherStatus{}}
	}
	s.Shadow = c.config.shadow
	s.Totals, s.History = c.metrics.Totals(), c.history.samples(c.config.Clock.Now())
	if s.Errors = c.errors.all(); len(s.Errors) > 0 {
		s.LastError = &s.Errors[0]
	}
	return s, nil
}

func (e *engine) status(q WatcherQuery) Status {
	stats := e.state.Stats()
	s := Status{
		Resource:              e.config.GroupResource.String(),
		ResourceVersion:       stats.RV,
		OldestResourceVersion: stats.OldestRV,
		Objects:               stats.Objects,
		ObjectBytes:           stats.ObjectBytes,
		WindowEvents:          stats.WindowEvents,
		WindowBytes:           stats.WindowBytes,
		EncodingBytes:         e.encodingBytes(),
		WindowSamples:         e.windowSamples(),
		Ended:                 endedWatches(e.fanout.Endings()),
	}
	if silence, heard := e.silence(); heard {
		s.SilenceSeconds = silence.Seconds()
		s.StorageResourceVersion, s.StorageAgeSeconds = stats.RV, s.SilenceSeconds
		if told := e.versions.Highest(); told > stats.RV {
			age := max(0, e.time.Now()-time.Duration(e.toldAt.Load()))
			s.StorageResourceVersion, s.StorageAgeSeconds = told, age.Seconds()
		}
	}
	s.Silent = e.progress.Silent()
	s.Ready, s.Since = e.readiness.readySince()
	if why := e.readiness.why(); why != nil {
		s.NotReady = publicText(why)
	}
	if since, why := e.readiness.pausedBy(); why != nil {
		s.Paused = &LastError{Summary: summaryPaused, Message: publicText(why), Time: since}
	}
	if silence, why := e.health.lostSince(); why != nil {
		s.Lost = &LastError{Summary: summaryLost, Message: publicText(why), Time: e.config.Clock.Now().Add(-silence)}
	}
	s.Watchers, s.Watches = e.watchers(q)
	return s
}

// windowSamples returns events of the window with the times at which the cache
// got them, by the clock as it is now.
func (e *engine) windowSamples() []WindowSample {
	samples := e.state.Sample(windowSamples)
	out := make([]WindowSample, len(samples))
	now, passed := e.config.Clock.Now(), e.time.Now()
	for i, s := range samples {
		before := s.Position - 1
		if i > 0 {
			before = samples[i-1].Position
		}
		out[i] = WindowSample{
			ResourceVersion: s.RV, Received: now.Add(time.Duration(s.Received) - passed),
			Events: int(s.Position - before),
		}
	}
	return out
}

// lastStats holds storage's last stats, which are returned while the cache sleeps.
type lastStats = atomic.Pointer[storage.Stats]

// Stats implements storage.Interface. A server calls it again and again, so it does not
// wake the cache: a sleeping cache returns the last known stats.
func (c *Cacher) Stats(ctx context.Context) (storage.Stats, error) {
	sleeps := c.lifecycle.current() == nil && !c.stopped()
	if sleeps && c.estimates.Load() {
		if last := c.stats.Load(); last != nil {
			return *last, nil
		}
		return storage.Stats{}, errStatsUnknown
	}
	stats, err := c.config.Storage.Stats(ctx)
	if err == nil && c.config.IdleTimeout != 0 {
		c.stats.Store(&stats)
	}
	return stats, err
}

// rememberStats updates the stats that Stats returns while the cache sleeps. If storage
// fails, the last ones stay.
func (c *Cacher) rememberStats(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.config.FreshnessTimeout)
	defer cancel()
	_, _ = c.Stats(ctx)
}

const (
	// historyStep is the time between two samples of a cache that is awake, and
	// historyKept how many are kept: ten minutes, in about 6 KB.
	historyStep = 5 * time.Second
	historyKept = 120
)

// HistorySample describes a cache's activity in the time up to one moment.
type HistorySample struct {
	Time time.Time `json:"time"`
	// Seconds is the length of that time. Events came from storage, Delivered counts
	// events sent to watchers (once for each), Reads the GETs and LISTs answered.
	Seconds   float64 `json:"seconds"`
	Events    uint64  `json:"events"`
	Delivered uint64  `json:"delivered"`
	Reads     uint64  `json:"reads"`
	// At its end so many watches were open, so many of them caught up, and the
	// worst one was so many events behind.
	Watchers       int    `json:"watchers"`
	CatchingUp     int    `json:"catchingUp"`
	WorstLagEvents uint64 `json:"worstLagEvents"`
	// Objects is how many objects the cache had.
	Objects int `json:"objects"`
}

// moment is the counters of an awake cache at one time.
type moment struct {
	time                      time.Time
	passed                    time.Duration // on the engine's timeline
	events, delivered, reads  uint64
	watchers, behind, objects int
	worst                     uint64
}

// history is the samples of the last ten minutes. The dispatcher takes them,
// while the cache is awake: there is no goroutine for it, and a cache that sleeps
// has a gap.
type history struct {
	mu struct {
		sync.Mutex
		ring []HistorySample
		next int // the slot of the next sample, once the ring is full
	}
}

// add adds the sample between two moments.
func (h *history) add(from, to moment) {
	s := HistorySample{
		Time: to.time, Seconds: (to.passed - from.passed).Seconds(),
		Events: to.events - from.events, Delivered: to.delivered - from.delivered, Reads: to.reads - from.reads,
		Watchers: to.watchers, CatchingUp: to.behind, WorstLagEvents: to.worst, Objects: to.objects,
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.mu.ring) < historyKept {
		h.mu.ring = append(h.mu.ring, s)
		return
	}
	h.mu.ring[h.mu.next] = s
	h.mu.next = (h.mu.next + 1) % historyKept
}

// samples returns the samples of the ten minutes before now, the oldest first.
func (h *history) samples(now time.Time) []HistorySample {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]HistorySample, 0, len(h.mu.ring))
	for i := range h.mu.ring {
		s := h.mu.ring[(h.mu.next+i)%len(h.mu.ring)]
		if now.Sub(s.Time) <= historyKept*historyStep {
			out = append(out, s)
		}
	}
	return out
}

// remember adds a sample to the history if it is time. The dispatcher calls it
// once a second.
func (e *engine) remember() {
	passed := e.time.Now()
	if passed-e.remembered.passed < historyStep {
		return
	}
	now := e.moment(passed)
	e.history.add(e.remembered, now)
	e.remembered = now
}

func (e *engine) moment(passed time.Duration) moment {
	stats, totals := e.state.Stats(), e.metrics.Totals()
	live, behind := e.fanout.Counts()
	m := moment{
		time: e.config.Clock.Now(), passed: passed, delivered: totals.Delivered,
		watchers: live + behind, behind: behind, worst: e.fanout.WorstLag(), objects: stats.Objects,
	}
	for typ, n := range totals.Events {
		if typ != metrics.EventBookmark.String() {
			m.events += n
		}
	}
	for _, decisions := range totals.Reads {
		for _, n := range decisions {
			m.reads += n
		}
	}
	return m
}

// silence returns the time since storage's last sign of life; false if there was none
// since the cache is awake.
func (e *engine) silence() (time.Duration, bool) {
	at := e.health.heardAt.Load()
	return max(0, e.time.Now()-time.Duration(at)), at > 0 || e.readiness.ready()
}

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
