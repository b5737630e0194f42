// SPDX-License-Identifier: Apache-2.0

package match

import (
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// unindexed is where an index has the elements that its function failed for: they are among
// the candidates for every value.
const unindexed = "\x00unindexed"

// Config names the indexes of a resource. The fields are those of the same
// meaning in the cacher's own configuration.
type Config struct {
	// Prefix is the resource's key prefix; deeper prefixes are scopes.
	Prefix string
	// Triggers are functions of objects by the name of the field that they
	// compute.
	Triggers storage.IndexerFuncs
	// Indexers are functions by the storage.FieldIndex or storage.LabelIndex that they
	// compute. A function for a field or label is trusted to return its values, as in
	// k8s.io/apiserver's cacher.
	Indexers cache.Indexers
	// Labels are indexed by the label itself.
	Labels []string
	// Adaptive is how many indexes Adapt may build, none if it is not positive, and
	// AdaptivePercent how many percent of the bytes of the elements they may take.
	Adaptive, AdaptivePercent int
	// Failed, if set, is called for each failure of an indexer while the state is being written
	// or read: it must return at once, and take no lock.
	Failed func(index, key string, err error)
}

// Indexes are the indexes of one resource. Reads are served from them, and they show which
// equalities of a query are rare.
type Indexes struct {
	prefix   string
	triggers storage.IndexerFuncs
	declared map[attribute]*declaredIndex
	ofState  []watchcache.Index
	adaptive *adaptive
	// floors are the attributes that the state remembers evicted events by.
	floors []attribute
}

// declaredIndex is an index of the configuration that reads are served from.
type declaredIndex struct {
	name string
	// fails: there may be elements that the index could not place.
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

// OfState returns the indexes for the state machine to keep.
func (x *Indexes) OfState() []watchcache.Index { return x.ofState }

// Names returns the names of the indexes that the configuration has, sorted.
func (x *Indexes) Names() []string {
	var names []string
	for _, index := range x.ofState {
		names = append(names, index.Name)
	}
	slices.Sort(names)
	return names
}

// attributeOf returns the attribute that an index's name contains.
func attributeOf(index string) (at attribute, ok bool) {
	if field, ok := strings.CutPrefix(index, storage.FieldIndex("")); ok {
		return attribute{byField, field}, true
	}
	label, ok := strings.CutPrefix(index, storage.LabelIndex(""))
	return attribute{byLabel, label}, ok
}

// rangeOf returns the range of the index that holds all elements that can have
// one of the values.
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

// indexOf returns an index by the values that elements have of an attribute.
func (x *Indexes) indexOf(name string, at attribute) watchcache.Index {
	return watchcache.Index{Name: name, Values: func(e *watchcache.Element, dst []string) []string {
		x.values(at, e, nil, func(value string) { dst = append(dst, value) })
		return dst
	}}
}
