// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-watchcache/watchcache/metrics"
)

const (
	// readLatest reads the latest snapshot, once it reaches rv.
	readLatest = metrics.DecisionLatest
	// readConsistent reads the latest snapshot, once it is as new as storage was after the read
	// arrived.
	readConsistent = metrics.DecisionConsistent
	// readExact reads the snapshot at rv.
	readExact = metrics.DecisionExact
	// readContinue continues a list in the snapshot of its token, from the token's key.
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
	// fromStorage is Config.ConsistentGetFromStorage, for GETs.
	fromStorage bool
	// unset is true if the resourceVersion is "", and rv is its value otherwise.
	unset bool
	rv    uint64
	match metav1.ResourceVersionMatch
	// limit is the page size, 0 for none. selective is true if there is a selector.
	limit     int64
	selective bool
	// continues is true for a list after continueKey at continueRV, or at the latest version if
	// that is negative.
	continues   bool
	continueKey string
	continueRV  int64
}

// limited reports whether the limit counts. At resourceVersion "0" it needs Exact, because clients
// would mistake a page for the answer of a server without a watch cache.
func (o *readOptions) limited() bool {
	return o.limit > 0 && (o.unset || o.rv > 0 || o.match == metav1.ResourceVersionMatchExact)
}

// readState is the input of decide from the cache.
type readState struct {
	condition *condition
	// reports is true if storage should report the progress of the cache's watch.
	reports bool
	// rv is the cache's version. The cache has versions from oldest, storage from compacted.
	rv, oldest, compacted uint64
	// pinned has the snapshots below oldest that continue tokens pin. It is nil for a GET.
	pinned interface{ HasSnapshot(rv uint64) bool }
}

// progress reports whether the cache receives progress reports.
func (s *readState) progress() bool { return s.reports && !s.condition.silent }

func (s *readState) shows(rv uint64) bool {
	return rv >= s.oldest || (s.pinned != nil && s.pinned.HasSnapshot(rv))
}

type decision struct {
	kind metrics.Decision
	rv   uint64
	from string
	// limited is true if there is a limit that counts.
	limited bool
	// needsAdmission is true for LISTs of which we admit only a few at a time to storage.
	needsAdmission bool
	// afterWait is true for a GET that timed out waiting for the cache.
	afterWait bool
}

func (d decision) served() bool { return d.kind != readDelegate && d.kind != readRefuse }

// decide is the whole policy of reads: "Semantics for get and list" of the Kubernetes API concepts.
// While the cache is not ready, reads cheap for storage go there and others are refused (KEP-4568).
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

// decideReady is decide for a ready cache.
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

// delegateUnlessShown delegates a read at one version to storage if the cache does not have it or
// can't vouch for it, or storage would reject it. For a future version the cache needs progress
// reports.
func (d decision) delegateUnlessShown(s *readState) decision {
	if d.rv == 0 || s.condition.integrity != verified || d.rv < s.condition.trustedFrom || !s.shows(d.rv) || d.rv < s.compacted || (d.rv > s.rv && !s.progress()) {
		return decision{kind: readDelegate}
	}
	return d
}
