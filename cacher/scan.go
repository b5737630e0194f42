// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// scan calls yield for each element of the snapshot that is selected, from a
// key on ("": from the start), in key order, until yield returns false. It
// looks at the narrowest range that an index or the key prefix gives, and
// returns the name of the index, if one was used.
func (c *Cacher) scan(snapshot *watchcache.Snapshot, s *selected, from string, yield func(*watchcache.Element) bool) (index string) {
	if !s.recursive {
		if e := snapshot.Get(s.key); e != nil && s.matches(e) {
			yield(e)
		}
		return ""
	}
	look := func(e *watchcache.Element) bool { return !s.matches(e) || yield(e) }
	if index, value, ok := c.indexFor(s); ok {
		snapshot.RangeIndex(index, value, s.key, from, look)
		return index
	}
	snapshot.Range(s.key, from, look)
	return ""
}

// indexFor returns an index, and the value in it, that holds all elements that
// can be selected.
func (c *Cacher) indexFor(s *selected) (index, value string, ok bool) {
	if s.everything {
		return "", "", false
	}
	for _, index := range c.indexes {
		switch {
		case index.field != "" && s.predicate.Field != nil:
			value, ok = s.predicate.Field.RequiresExactMatch(index.field)
		case index.label != "" && s.predicate.Label != nil:
			value, ok = s.predicate.Label.RequiresExactMatch(index.label)
		}
		if ok {
			return index.name, value, true
		}
	}
	return "", "", false
}

// servedIndex is an index by what it serves: a field or a label.
type servedIndex struct {
	name         string
	field, label string
}

// indexesOf makes the state machine's indexes from the configured ones. An
// index function for a field or label is trusted to return that field's or
// label's values, as k8s.io/apiserver's cacher does.
func indexesOf(config *Config) ([]watchcache.Index, []servedIndex) {
	var indexes []watchcache.Index
	var served []servedIndex
	if config.Indexers != nil {
		for name, values := range *config.Indexers {
			indexes = append(indexes, watchcache.Index{Name: name, Values: func(e *watchcache.Element, dst []string) []string {
				found, err := values(e.Object)
				if err != nil {
					return dst // not found by this index
				}
				return append(dst, found...)
			}})
			served = append(served, servedAs(name))
		}
	}
	for _, label := range config.LabelIndexes {
		name := storage.LabelIndex(label)
		indexes = append(indexes, watchcache.Index{Name: name, Values: func(e *watchcache.Element, dst []string) []string {
			if value, ok := e.Labels[label]; ok {
				return append(dst, value)
			}
			return dst
		}})
		served = append(served, servedIndex{name: name, label: label})
	}
	return indexes, served
}

func servedAs(index string) servedIndex {
	s := servedIndex{name: index}
	if field, ok := cutIndexPrefix(index, storage.FieldIndex("")); ok {
		s.field = field
	} else if label, ok := cutIndexPrefix(index, storage.LabelIndex("")); ok {
		s.label = label
	}
	return s
}

func cutIndexPrefix(index, prefix string) (string, bool) {
	if len(index) > len(prefix) && index[:len(prefix)] == prefix {
		return index[len(prefix):], true
	}
	return "", false
}
