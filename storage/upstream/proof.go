// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"
)

const (
	// proofSeconds is the timeout of a proof's watch. API servers send a bookmark two seconds
	// before a watch ends, but none for shorter timeouts.
	proofSeconds = 3
	// proofTimeout and proofEvents limit a proof. It can't help a watch further behind.
	proofTimeout = 5 * time.Second
	proofEvents  = 1000
	// proofQuiet is the minimum time without events before a proof. A busy resource's next event
	// arrives sooner and proves as much.
	proofQuiet = 300 * time.Millisecond
	// vainProofs consecutive failures make the upstream count as unable. Retries begin after
	// unprovenPause, doubling up to unprovenPauseMax.
	vainProofs       = 2
	unprovenPause    = 5 * time.Second
	unprovenPauseMax = 5 * time.Minute
)

// proof is the result of a second watch from a version that the first watch completed, to a
// bookmark. It includes all events in between, so once the first watch forwarded the last one, it
// is complete up to the bookmark.
type proof struct {
	// upTo is the bookmark's version. last is the version of the last event, or the start version
	// without events, and events the number of events at last. told is the highest version reported
	// before the second watch.
	upTo, last, told uint64
	events           int
	err              error
}

// prove starts a proof unless events arrive, are unordered, or a proof exists. It lists first,
// unless a list already found a later version.
func (w *stream) prove(now time.Time) {
	told := w.store.told.Load()
	if !w.complete || told <= w.at {
		told = 0
		if !w.asked { // the event awaited by a read may be on its way
			w.asked, w.moved = true, now
		}
	}
	if w.ordered && !w.proves && w.proven == nil && now.Sub(w.moved) >= proofQuiet {
		w.asked = false
		w.begin(told)
	}
}

// proveAgain lists and starts a proof to find out whether the upstream is able again.
func (w *stream) proveAgain() {
	if w.ordered && !w.proves {
		w.proven = nil
		w.begin(0)
	}
}

// begin starts a proof up to told, or if told is 0, up to the version of a new list. Its goroutine
// ends within proofTimeout or with the watch, which waits for it.
func (w *stream) begin(told uint64) {
	at, from := w.at, w.at
	if !w.complete {
		from-- // the proof must include every event at the version
	}
	ctx, cancel := context.WithTimeout(w.ctx, proofTimeout)
	w.proves = true
	w.proving.Go(func() {
		defer cancel()
		var p proof
		if told == 0 {
			told, p.err = w.store.GetCurrentResourceVersion(ctx)
		}
		switch {
		case p.err == nil && told <= at:
			p.err = errNothingNew // so no bookmark would follow the last event
		case p.err == nil:
			p = w.store.proof(ctx, w.query, from)
		}
		p.told = told
		w.proofs <- p // never blocks: proofs run one at a time
	})
}

// proof watches from a version to a bookmark.
func (s *Store) proof(ctx context.Context, q query, from uint64) proof {
	seconds := int64(proofSeconds)
	q.options = metav1.ListOptions{
		LabelSelector: q.options.LabelSelector, FieldSelector: q.options.FieldSelector,
		ResourceVersion: strconv.FormatUint(from, 10), AllowWatchBookmarks: true, TimeoutSeconds: &seconds,
	}
	opened, err := s.open(ctx, q)
	if err != nil {
		return proof{err: err}
	}
	defer opened.Stop()
	return s.shown(ctx, opened, from)
}

// shown collects the events of a watch up to its first bookmark, or its end.
func (s *Store) shown(ctx context.Context, opened watch.Interface, from uint64) proof {
	p := proof{last: from}
	for found, complete := 0, false; ; {
		select {
		case event, open := <-opened.ResultChan():
			switch {
			case !open && complete:
				p.upTo = p.last // API servers send no bookmark at the version of the last event
				return p
			case !open:
				return proof{err: errNoBookmark}
			}
			if event.Type == watch.Error {
				return proof{err: apierrors.FromObject(event.Object)}
			}
			version, err := versionOf(event.Object)
			switch {
			case err != nil:
				return proof{err: err}
			case event.Type != watch.Bookmark && version < p.last, event.Type == watch.Bookmark && version == p.last && p.events > 0 && !complete:
				return proof{err: errIncomplete}
			case event.Type == watch.Bookmark:
				p.upTo = version
				return p
			case version != p.last:
				p.last, p.events = version, 0
			}
			p.events++
			complete = s.completes(event.Type)
			if found++; found > proofEvents {
				return proof{err: errFarBehind}
			}
		case <-ctx.Done():
			return proof{err: ctx.Err()}
		}
	}
}

var (
	errNoBookmark = errors.New("the upstream has sent no bookmark before the end of a watch")
	errNothingNew = errors.New("the upstream has no later version")
	errIncomplete = errors.New("the upstream's last event may not be the last one at its resourceVersion")
	errFarBehind  = fmt.Errorf("the upstream has more than %d events that the watch has not brought", proofEvents)
)

func versionOf(o runtime.Object) (uint64, error) {
	accessor, err := meta.Accessor(o)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(accessor.GetResourceVersion(), 10, 64)
}

// judge counts a proof and keeps it if usable.
func (w *stream) judge(p proof) {
	var status apierrors.APIStatus
	why := p.err
	switch {
	case w.ctx.Err() != nil:
		return
	case p.err == nil:
		w.proven = &p // even if it is too old for the waiting reads
		if p.upTo >= p.told {
			w.store.metrics.proofs.WithLabelValues(proofHeld).Inc()
			w.store.able()
			return
		}
		why = fmt.Errorf("it has watched up to resourceVersion %d, and listed at %d before", p.upTo, p.told)
	case errors.Is(p.err, errNothingNew) && w.complete:
		w.proven = &proof{upTo: w.at, last: w.at}
		return
	case errors.Is(p.err, errNoBookmark), errors.As(p.err, &status) && clientError(status.Status().Code):
	default:
		w.store.metrics.proofs.WithLabelValues(proofUnanswered).Inc() // the upstream may still be able
		return
	}
	w.store.metrics.proofs.WithLabelValues(proofFailed).Inc()
	w.store.unable(why)
}

// able records a proof that held.
func (s *Store) able() {
	s.mu.Lock()
	s.mu.vain, s.mu.pause = 0, 0
	s.mu.Unlock()
	if s.unproven.Swap(false) {
		klog.InfoS("The upstream proves again how fresh the watch cache is", "resource", s.config.Resource.GroupResource())
	}
}

// unable records a failed proof.
func (s *Store) unable(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.vain++; s.mu.vain < vainProofs {
		return
	}
	s.mu.pause = min(max(2*s.mu.pause, unprovenPause), unprovenPauseMax)
	s.mu.next = time.Now().Add(s.mu.pause)
	if !s.unproven.Swap(true) {
		klog.ErrorS(why, "The upstream can't prove how fresh the watch cache is. Consistent reads go to the upstream, which is tried again now and then",
			"resource", s.config.Resource.GroupResource(),
			"remedy", "an API server proves it from Kubernetes 1.31 on, with the feature ConsistentListFromCache; look for proxies that hold back watches")
	}
}

// WatchProgress implements capability.ProgressReporter. It returns false while the upstream counts
// as unable to prove freshness, and periodically starts another proof.
func (s *Store) WatchProgress() bool {
	if !s.unproven.Load() {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.After(s.mu.next) {
		s.mu.next = now.Add(max(s.mu.pause, unprovenPause))
		for w := range s.mu.streams {
			signal(w.again)
		}
	}
	s.metrics.passedReads.Inc()
	return false
}

func clientError(code int32) bool {
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusTooManyRequests
}

// apply sends a proof's bookmark once the watch reaches the proof's last event, and drops an
// outdated proof. It returns false if the watch must end.
func (w *stream) apply() bool {
	p := w.proven
	if p == nil || w.at > p.upTo {
		w.proven = nil
		return true
	}
	if w.at < p.last || (w.at == p.last && !w.complete && w.events < p.events) {
		return true // the event is on its way
	}
	w.proven = nil
	w.at, w.events, w.complete = p.upTo, 0, true
	return w.bookmark(p.upTo)
}
