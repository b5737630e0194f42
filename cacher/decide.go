// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-watchcache/watchcache/metrics"
)

// The ways to answer a read.
const (
	// readLatest reads the latest snapshot, once it is at rv or later.
	readLatest = metrics.DecisionLatest
	// readConsistent reads the latest snapshot, once it is at least as new as storage was when the
	// read arrived.
	readConsistent = metrics.DecisionConsistent
	// readExact reads the snapshot at exactly rv.
	readExact = metrics.DecisionExact
	// readContinue continues a list in the snapshot at the token's rv, from its key.
	readContinue = metrics.DecisionContinue
	// readDelegate leaves the read to storage.
	readDelegate = metrics.DecisionDelegate
	// readRefuse returns a 429.
	readRefuse = metrics.DecisionRefuse
)

// readOptions are the parsed options of a GET or a LIST.
type readOptions struct {
	// list is false for GET.
	list bool
	// recursive is true if a list is of a prefix.
	recursive bool
	// fromStorage is Config.ConsistentGetFromStorage; it is set for GETs only.
	fromStorage bool
	// unset is true if the resourceVersion is "", and rv its value otherwise.
	unset bool
	rv    uint64
	match metav1.ResourceVersionMatch
	// limit is the page size, 0 for none. selective is true if there is a selector.
	limit     int64
	selective bool
	// continues is true if the list continues another one, after continueKey at continueRV, or at
	// the latest version if continueRV is negative.
	continues   bool
	continueKey string
	continueRV  int64
}

// limited reports whether the limit counts. At resourceVersion "0" it does only for an exact match:
// otherwise clients would mistake a page for the answer of a server without a watch cache.
func (o *readOptions) limited() bool {
	return o.limit > 0 && (o.unset || o.rv > 0 || o.match == metav1.ResourceVersionMatchExact)
}

// readState is the part of the cache's state that decide depends on.
type readState struct {
	condition *condition
	// reports is true if storage should report the progress of the cache's watch.
	reports bool
	// rv is the cache's version. The cache can show versions from oldest, and storage those from
	// compacted.
	rv, oldest, compacted uint64
	// kept reports whether a continue token pins the snapshot at a version below oldest. It may be
	// nil.
	kept func(rv uint64) bool
}

// progress reports whether the cache receives progress reports.
func (s *readState) progress() bool { return s.reports && !s.condition.silent }

// shows reports whether the cache can show the version.
func (s *readState) shows(rv uint64) bool {
	return rv >= s.oldest || (s.kept != nil && s.kept(rv))
}

type decision struct {
	kind metrics.Decision
	rv   uint64
	from string
	// limited is true if there is a limit that counts.
	limited bool
	// needsAdmission is true if the cache can't shield storage from these LISTs: we admit a few at
	// a time to storage and refuse the others.
	needsAdmission bool
	// afterWait is true if storage answers a GET that timed out waiting for the cache.
	afterWait bool
}

func (d decision) served() bool { return d.kind != readDelegate && d.kind != readRefuse }

// decide is the whole policy of reads: "Semantics for get and list" of the Kubernetes API concepts
// and, while the cache is not ready, KEP-4568: reads cheap for storage go there, and we refuse the
// others.
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
		// Before resourceVersionMatch existed, a limit implied Exact.
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

// delegateUnlessShown delegates a read at one version to storage if the cache does not have the
// version, can't vouch for it, or storage would reject it. The cache waits for a future version
// only if progress reports can announce it.
func (d decision) delegateUnlessShown(s *readState) decision {
	if d.rv == 0 || s.condition.integrity != verified || d.rv < s.condition.trustedFrom || !s.shows(d.rv) || d.rv < s.compacted || (d.rv > s.rv && !s.progress()) {
		return decision{kind: readDelegate}
	}
	return d
}
