// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"
)

// readKind is how a read is answered.
type readKind uint8

const (
	// readLatest: from the newest snapshot, once it is at rv or later.
	readLatest readKind = iota
	// readConsistent: from the newest snapshot, once it is as new as storage
	// was at some time after the read arrived.
	readConsistent
	// readExact: from the snapshot at exactly rv.
	readExact
	// readContinue: from the snapshot at the continue token's rv, and its key.
	readContinue
	// readDelegate: by storage.
	readDelegate
	// readRefuse: not now (429).
	readRefuse
)

var readKinds = [...]string{"latest", "consistent", "exact", "continue", "delegate", "refuse"}

// String returns the kind's name in metrics.
func (k readKind) String() string { return readKinds[k] }

// readOptions is what a read asks for.
type readOptions struct {
	// list is false for GET.
	list bool
	// recursive is whether a list is of a prefix.
	recursive bool
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

// readState is what the cache is able to do.
type readState struct {
	// ready: there is a state to serve from. stopped: there never will be.
	ready, stopped bool
	// progress: the storage reports the progress of the cache's watch.
	progress bool
	// consistentGet: GET without a resourceVersion may be served.
	consistentGet bool
	// rv is what the cache is at, oldest and compacted from which version on
	// it could answer, and storage could.
	rv, oldest, compacted uint64
}

// decision is how a read is answered, from which version and from which key.
type decision struct {
	kind readKind
	rv   uint64
	from string
	// limited: there is a limit, and it applies.
	limited bool
}

// decide is the whole policy of reads. It follows "Semantics for get and list"
// of the Kubernetes API concepts, and KEP-4568 for a cache that is not ready:
// what storage answers cheaply goes there, the rest is to come again.
func decide(o readOptions, s readState) decision {
	if s.stopped {
		return decision{kind: readRefuse}
	}
	d := decideReady(o, s)
	switch {
	case s.ready || d.kind == readDelegate:
		return d
	case !o.list || (o.limit > 0 && !o.selective):
		return decision{kind: readDelegate}
	}
	return decision{kind: readRefuse}
}

// decideReady is decide for a cache that is ready.
func decideReady(o readOptions, s readState) decision {
	limited := o.limit > 0
	switch {
	case o.continues && o.continueRV > 0:
		d := decision{kind: readContinue, rv: uint64(o.continueRV), from: o.continueKey, limited: limited}
		return d.ifShown(s)
	case o.continues:
		return decideConsistent(o.continueKey, limited, s.progress)
	case o.match == metav1.ResourceVersionMatchExact:
		return decision{kind: readExact, rv: o.rv, limited: limited}.ifShown(s)
	case o.unset:
		return decideConsistent("", limited, s.progress && (o.list || s.consistentGet))
	case o.list && o.match == "" && limited && o.recursive && o.rv > 0:
		// Before there was resourceVersionMatch, a limit made it exact.
		return decision{kind: readExact, rv: o.rv, limited: limited}.ifShown(s)
	}
	return decision{kind: readLatest, rv: o.rv, limited: limited}
}

func decideConsistent(from string, limited, served bool) decision {
	if !served {
		return decision{kind: readDelegate}
	}
	return decision{kind: readConsistent, from: from, limited: limited}
}

// ifShown delegates a read at one version if the cache can't show it, if
// storage would refuse it, or if it is none: the answer, "too old" included,
// is then storage's own. A version to come is waited for only if the cache can
// know that it has come.
func (d decision) ifShown(s readState) decision {
	if d.rv == 0 || d.rv < s.oldest || d.rv < s.compacted || (d.rv > s.rv && !s.progress) {
		return decision{kind: readDelegate}
	}
	return d
}

// listOptions turns the options of a LIST into what decide wants. It fails for
// what is malformed, as storage would.
func (c *engine) listOptions(key string, opts storage.ListOptions) (readOptions, error) {
	if _, _, err := storage.ValidateListOptions(key, c.config.Versioner, opts); err != nil {
		return readOptions{}, err
	}
	rv, err := c.config.Versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return readOptions{}, err
	}
	o := readOptions{
		list: true, recursive: opts.Recursive,
		unset: opts.ResourceVersion == "", rv: rv, match: opts.ResourceVersionMatch,
		limit: opts.Predicate.Limit, selective: !opts.Predicate.Empty(),
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
