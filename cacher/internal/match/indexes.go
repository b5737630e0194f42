// SPDX-License-Identifier: Apache-2.0

package match

import (
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// unindexed is the index value of elements whose index function failed. They are candidates for
// every value.
const unindexed = "\x00unindexed"

// Config names the indexes of a resource.
type Config struct {
	// Prefix is the resource's key prefix. Deeper prefixes are scopes.
	Prefix string
	// Triggers compute fields of objects, by field name.
	Triggers storage.IndexerFuncs
	// Indexers are index functions by storage.FieldIndex or storage.LabelIndex. As in
	// k8s.io/apiserver's cacher, each must return the values that its name promises.
	Indexers cache.Indexers
	// Labels are indexed by their values.
	Labels []string
	// Adaptive is the most indexes that Adapt may build, and AdaptivePercent their most memory as a
	// percentage of the elements' bytes.
	Adaptive, AdaptivePercent int
	// Failed, if not nil, is called for each failure of an indexer while the state is written or
	// read. It must not block or take a lock.
	Failed func(index, key string, err error)
}

// Indexes are the indexes of one resource. Safe for concurrent use.
type Indexes struct {
	prefix   string
	triggers storage.IndexerFuncs
	declared map[attribute]*declaredIndex
	ofState  []watchcache.Index
	adaptive *adaptive
	// floors are the attributes by which the state records evicted events.
	floors []attribute
}

type declaredIndex struct {
	name string
	// fails is true if the index function may fail, leaving elements under unindexed.
	fails bool
}

// NewIndexes returns the indexes of a resource.
func NewIndexes(config Config) *Indexes {
	x := &Indexes{prefix: config.Prefix, triggers: config.Triggers, declared: make(map[attribute]*declaredIndex)}
	x.adaptive = newAdaptive(config.Adaptive, config.AdaptivePercent)
	for name, values := range config.Indexers {
		x.ofState = append(x.ofState, watchcache.Index{Name: name, Values: indexBy(name, values, config.Failed)})
		if at, ok := attributeOf(name); ok {
			x.declared[at] = &declaredIndex{name: name, fails: true}
		}
	}
	for _, label := range config.Labels {
		name := storage.LabelIndex(label)
		at := attribute{byLabel, label}
		x.ofState = append(x.ofState, x.indexOf(name, at))
		x.declared[at] = &declaredIndex{name: name}
	}
	x.floors = x.floorAttributes()
	return x
}

// OfState returns the configured indexes, for the state machine.
func (x *Indexes) OfState() []watchcache.Index { return x.ofState }

// Names returns the sorted names of the configured indexes.
func (x *Indexes) Names() []string {
	var names []string
	for _, index := range x.ofState {
		names = append(names, index.Name)
	}
	slices.Sort(names)
	return names
}

func attributeOf(index string) (at attribute, ok bool) {
	if field, ok := strings.CutPrefix(index, storage.FieldIndex("")); ok {
		return attribute{byField, field}, true
	}
	label, ok := strings.CutPrefix(index, storage.LabelIndex(""))
	return attribute{byLabel, label}, ok
}

func (i *declaredIndex) rangeOf(snapshot *watchcache.Snapshot, values []string) indexRange {
	if i.fails && snapshot.CountIndex(i.name, []string{unindexed}, "", "") > 0 {
		values = append(values, unindexed)
	}
	return indexRange{index: i.name, values: values}
}

func indexBy(name string, values cache.IndexFunc, failed func(index, key string, err error)) func(*watchcache.Element, []string) []string {
	return func(e *watchcache.Element, dst []string) []string {
		found, err := values(e.Object)
		if err != nil {
			if failed != nil {
				failed(name, e.Key, err)
			}
			return append(dst, unindexed)
		}
		return append(dst, found...)
	}
}

func (x *Indexes) indexOf(name string, at attribute) watchcache.Index {
	return watchcache.Index{Name: name, Values: func(e *watchcache.Element, dst []string) []string {
		x.values(at, e, nil, func(value string) { dst = append(dst, value) })
		return dst
	}}
}
