// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"strings"

	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/watchcache"
)

const (
	namespaceField = "metadata.namespace"

	// strayIndex has the elements whose key is not that of their namespace,
	// which are none for an API server's usual keys. As long as it is empty,
	// and takes no memory, a namespace can be read by its key prefix.
	strayIndex = "\x00stray"

	// unindexed is where an index has the elements that its function failed
	// for: they are among the candidates for every value.
	unindexed = "\x00unindexed"
)

var strayValues = []string{""}

// servedIndex is an index by what it serves: a field or a label.
type servedIndex struct {
	name         string
	field, label string
	// fails: there may be elements that the index could not place.
	fails bool
}

// reach returns the range of the index that holds what can have the values.
func (i *servedIndex) reach(snapshot *watchcache.Snapshot, values ...string) reach {
	if i.fails && snapshot.CountIndex(i.name, []string{unindexed}, "", "", 1) > 0 {
		values = append(values, unindexed)
	}
	return reach{index: i.name, values: values}
}

// indexesOf makes the state machine's indexes from the configured ones, and
// says which of them reads are served from. An index function for a field or
// label is trusted to return that field's or label's values, as
// k8s.io/apiserver's cacher does.
func indexesOf(config *Config) ([]watchcache.Index, []servedIndex) {
	indexes := []watchcache.Index{{Name: strayIndex, Values: strayFrom(config.ResourcePrefix)}}
	var served []servedIndex
	if config.Indexers != nil {
		for name, values := range *config.Indexers {
			indexes = append(indexes, watchcache.Index{Name: name, Values: indexBy(values)})
			served = append(served, servedAs(name))
		}
	}
	for _, label := range config.LabelIndexes {
		name := storage.LabelIndex(label)
		indexes = append(indexes, watchcache.Index{Name: name, Values: indexByLabel(label)})
		served = append(served, servedIndex{name: name, label: label})
	}
	return indexes, served
}

func indexBy(values cache.IndexFunc) func(*watchcache.Element, []string) []string {
	return func(e *watchcache.Element, dst []string) []string {
		found, err := values(e.Object)
		if err != nil {
			return append(dst, unindexed)
		}
		return append(dst, found...)
	}
}

func indexByLabel(label string) func(*watchcache.Element, []string) []string {
	return func(e *watchcache.Element, dst []string) []string {
		if value, ok := e.Labels[label]; ok {
			return append(dst, value)
		}
		return dst
	}
}

// strayFrom finds elements that have a namespace but not its key. An element
// without a namespace is selected by none.
func strayFrom(prefix string) func(*watchcache.Element, []string) []string {
	return func(e *watchcache.Element, dst []string) []string {
		namespace := e.Fields.Get(namespaceField)
		if namespace == "" {
			return dst
		}
		rest, resource := strings.CutPrefix(e.Key, prefix)
		rest, namespaced := strings.CutPrefix(rest, namespace)
		if resource && namespaced && strings.HasPrefix(rest, "/") {
			return dst
		}
		return append(dst, strayValues...)
	}
}

func servedAs(index string) servedIndex {
	s := servedIndex{name: index, fails: true}
	if field, ok := strings.CutPrefix(index, storage.FieldIndex("")); ok {
		s.field = field
	} else if label, ok := strings.CutPrefix(index, storage.LabelIndex("")); ok {
		s.label = label
	}
	return s
}
