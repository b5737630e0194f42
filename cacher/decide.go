// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-watchcache/watchcache/metrics"
)

// How a read is answered.
const (
	// readLatest: from the latest snapshot, once it is at rv or later.
	readLatest = metrics.DecisionLatest
	// readConsistent: from the latest snapshot, once it is as new as storage
	// was at some time after the read arrived.
	readConsistent = metrics.DecisionConsistent
	// readExact: from the snapshot at exactly rv.
	readExact = metrics.DecisionExact
	// readContinue: from the snapshot at the continue token's rv, and its key.
	readContinue = metrics.DecisionContinue
	// readDelegate: by storage.
	readDelegate = metrics.DecisionDelegate
	// readRefuse: not now (429).
	readRefuse = metrics.DecisionRefuse
)

// readOptions holds the parsed options of a GET or a LIST.
type readOptions struct {
	// list is false for GET.
	list bool
	// recursive is whether a list is of a prefix.
	recursive bool
	// fromStorage is true if storage answers a consistent read: Config.ConsistentGetFromStorage.
	fromStorage bool
	// unset is whether the resourceVersion is "", and rv its value otherwise.
	unset bool
	rv    uint64
	match metav1.ResourceVersionMatch
	// limit is the page size, 0 for none. selective: not everything matches.
	limit     int64
	selective bool
	// continues: the list continues another one after continueKey, at
	// continueRV; or at the latest version if that is negative.
	continues   bool
	continueKey string
	continueRV  int64
}

// limited reports whether the limit counts. Without Exact it doesn't at resourceVersion
// "0": clients take a page there for the answer of a server without a watch cache.
func (o *readOptions) limited() bool {
	return o.limit > 0 && (o.unset || o.rv > 0 || o.match == metav1.ResourceVersionMatchExact)
}

// readState holds the cache's state as far as decide needs it.
type readState struct {
	condition *condition
	// reports is true if storage reports the progress of the cache's watch, or should.
	reports bool
	// rv is the version that the cache is at. The cache has the versions from
	// oldest on, and storage those from compacted on.
	rv, oldest, compacted uint64
	// kept reports whether the snapshot at a version below oldest is kept for
	// clients that were given a continue token for it. nil: none is.
	kept func(rv uint64) bool
}

// progress reports whether the cache learns how far its watch is.
func (s *readState) progress() bool { return s.reports && !s.condition.silent }

// shows reports whether the cache has the version, or has had it when the first
// page was read.
func (s *readState) shows(rv uint64) bool {
	return rv >= s.oldest || (s.kept != nil && s.kept(rv))
}

// decision says how a read is answered: the source, the version and the first key.
type decision struct {
	kind metrics.Decision
	rv   uint64
	from string
	// limited: there is a limit, and it applies.
	limited bool
	// needsAdmission: storage answers a few of the LISTs that ask at the same time, for
	// the cache can't shield it; the others are refused.
	needsAdmission bool
	// afterWait: storage answers a GET that has waited for the cache in vain.
	afterWait bool
}

// served reports whether the cache answers.
func (d decision) served() bool { return d.kind != readDelegate && d.kind != readRefuse }

// decide is the whole policy of reads: "Semantics for get and list" of the Kubernetes API
// concepts, and KEP-4568 for a cache that is not ready, where reads that are cheap for
// storage go there and the others are refused.
func decide(o *readOptions, s *readState) decision {
	if s.condition.phase == stopped {
		return decision{kind: readRefuse}
	}
	d := decideReady(o, s)
	switch {
	case s.condition.served(), d.kind == readDelegate && !d.needsAdmission:
		return d
	case !o.list || (o.limit > 0 && !o.selective):
		return decision{kind: readDelegate}
	}
	return decision{kind: readRefuse}
}

// decideReady is decide for a cache that is ready.
func decideReady(o *readOptions, s *readState) decision {
	limited := o.limited()
	switch {
	case o.continues && o.continueRV > 0:
		d := decision{kind: readContinue, rv: uint64(o.continueRV), from: o.continueKey, limited: limited}
		return d.delegateUnlessShown(s)
	case o.continues:
		return decideConsistent(o, s, o.continueKey, s.progress())
	case o.match == metav1.ResourceVersionMatchExact:
		return decision{kind: readExact, rv: o.rv, limited: limited}.delegateUnlessShown(s)
	case o.unset:
		return decideConsistent(o, s, "", s.progress() && !o.fromStorage)
	case o.list && o.match == "" && limited && o.recursive && o.rv > 0:
		// Before there was resourceVersionMatch, a limit made it exact.
		return decision{kind: readExact, rv: o.rv, limited: limited}.delegateUnlessShown(s)
	}
	if s.condition.silent && o.rv > s.rv {
		return decision{kind: readDelegate}
	}
	return decision{kind: readLatest, rv: o.rv, limited: limited}
}

func decideConsistent(o *readOptions, s *readState, from string, served bool) decision {
	switch {
	case !served:
		return decision{kind: readDelegate}
	case s.condition.integrity != verified:
		return decision{kind: readDelegate, needsAdmission: o.list}
	}
	return decision{kind: readConsistent, from: from, limited: o.limited()}
}

// delegateUnlessShown delegates a read at one version unless the cache can show it:
// storage answers if the cache no longer has the version or may have it wrong, and if
// storage would refuse it. A version to come is waited for only if the cache can know
// that it has come.
func (d decision) delegateUnlessShown(s *readState) decision {
	if d.rv == 0 || s.condition.integrity != verified || d.rv < s.condition.trustedFrom || !s.shows(d.rv) || d.rv < s.compacted || (d.rv > s.rv && !s.progress()) {
		return decision{kind: readDelegate}
	}
	return d
}
