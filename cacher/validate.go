// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/storage"
)

const (
	wantNotNegative = "it must not be negative"
	wantFunction    = "the function is required"
)

// problems collects what is wrong with a configuration or with options, in the
// order in which it is looked for.
type problems []error

// fieldError says that a field of Config does not fit.
type fieldError struct {
	name  string
	value any
	want  string // what is wanted instead
}

func (e fieldError) Error() string {
	return fmt.Sprintf("cacher.Config.%s is %v: %s", e.name, e.value, e.want)
}

// field adds a field of Config, its value and what is wanted instead.
func (p *problems) field(name string, value any, want string) {
	*p = append(*p, fieldError{name, value, want})
}

// required adds a field of Config if it is missing.
func (p *problems) required(name string, missing bool) {
	if missing {
		p.field(name, "nil", "it is required")
	}
}

// option adds what is wrong with an option.
func (p *problems) option(name, format string, args ...any) {
	*p = append(*p, fmt.Errorf("cacher.%s "+format, append([]any{name}, args...)...))
}

// Validate returns an error that names every field that does not fit, and its
// value, or nil.
func (c Config) Validate() error {
	var p problems
	p.required("Storage", c.Storage == nil)
	p.required("Versioner", c.Versioner == nil)
	p.required("KeyFunc", c.KeyFunc == nil)
	p.required("GetAttrsFunc", c.GetAttrsFunc == nil)
	p.required("NewFunc", c.NewFunc == nil)
	p.required("NewListFunc", c.NewListFunc == nil)
	p.required("Codec", c.Codec == nil)
	if c.GroupResource.Resource == "" {
		p.field("GroupResource", fmt.Sprintf("%q", c.GroupResource), "the resource is empty")
	}
	if prefix, clean := c.ResourcePrefix, path.Clean(c.ResourcePrefix); clean[0] != '/' || clean == "/" || (prefix != clean && prefix != clean+"/") {
		p.field("ResourcePrefix", fmt.Sprintf("%q", prefix), `want "/" and a name, for example "/devices/"`)
	}
	c.validateTuning(&p)
	c.validateIndexes(&p)
	c.validateTypes(&p)
	return errors.Join(p...)
}

// validateTuning checks the fields that don't depend on the resource, which are
// all that options set.
func (c Config) validateTuning(p *problems) {
	between(p, "EventsHistoryWindow", c.EventsHistoryWindow, 0, maxDuration)
	between(p, "WindowBytes", c.WindowBytes, 0, maxBytes)
	between(p, "DispatchBudget", c.DispatchBudget, math.MinInt64, maxDuration)
	between(p, "StaleReads", c.StaleReads, math.MinInt, maxStaleReads)
	if c.WatchBuffer < 0 || c.WatchBuffer > maxWatchBuffer {
		p.field("WatchBuffer", c.WatchBuffer, fmt.Sprintf("each watch allocates room for that many events: want 0 to %d", maxWatchBuffer))
	}
	between(p, "EncodingBytes", c.EncodingBytes, math.MinInt64, maxBytes)
	between(p, "EncodingPercent", c.EncodingPercent, math.MinInt, 100)
	between(p, "InitialEventsBytes", c.InitialEventsBytes, 0, maxBytes)
	// A number without a unit is nanoseconds.
	timeout(p, "BookmarkInterval", c.BookmarkInterval, 0, time.Millisecond)
	timeout(p, "FreshnessTimeout", c.FreshnessTimeout, 0, time.Millisecond)
	timeout(p, "ParkedTimeout", c.ParkedTimeout, 0, time.Millisecond)
	timeout(p, "InitialEventsTimeout", c.InitialEventsTimeout, math.MinInt64, time.Millisecond)
	timeout(p, "StorageTimeout", c.StorageTimeout, 0, time.Second)
	// These two cost Storage a read of all keys, or of all objects, which must not
	// be done many times a second by mistake.
	timeout(p, "ConsistencyCheckInterval", c.ConsistencyCheckInterval, math.MinInt64, time.Second)
	timeout(p, "IdleTimeout", c.IdleTimeout, 0, time.Second)
	seen := map[string]bool{}
	for _, label := range c.LabelIndexes {
		if msgs := validation.IsQualifiedName(label); len(msgs) > 0 {
			p.field("LabelIndexes", fmt.Sprintf("%q", label), strings.Join(msgs, "; "))
		}
		if seen[label] {
			p.field("LabelIndexes", fmt.Sprintf("%q", label), "the label is there already")
		}
		seen[label] = true
	}
}

// between accepts values from least to most, both included.
func between[T time.Duration | int64 | int](p *problems, field string, value, least, most T) {
	switch {
	case value < least && least == 0:
		p.field(field, value, wantNotNegative)
	case value < least, value > most:
		p.field(field, value, fmt.Sprintf("it must be at most %v", most))
	}
}

// timeout accepts positive values from shortest on, and those from least to 0,
// which mean something else.
func timeout(p *problems, field string, value, least, shortest time.Duration) {
	if value > 0 && value < shortest {
		p.field(field, value, fmt.Sprintf("it must be at least %v", shortest))
		return
	}
	between(p, field, value, least, maxDuration)
}

func (c Config) validateIndexes(p *problems) {
	for _, name := range slices.Sorted(maps.Keys(c.IndexerFuncs)) {
		if name == "" {
			p.field("IndexerFuncs", `""`, "want the name of a field")
		}
		if c.IndexerFuncs[name] == nil {
			p.field("IndexerFuncs", fmt.Sprintf("%q: nil", name), wantFunction)
		}
	}
	names := map[string]bool{}
	if c.Indexers != nil {
		for _, name := range slices.Sorted(maps.Keys(*c.Indexers)) {
			names[name] = true
			if !isIndexName(name) {
				p.field("Indexers", fmt.Sprintf("%q", name), fmt.Sprintf("no read would use it: want %q or %q", storage.FieldIndex("FIELD"), storage.LabelIndex("LABEL")))
			}
			if (*c.Indexers)[name] == nil {
				p.field("Indexers", fmt.Sprintf("%q: nil", name), wantFunction)
			}
		}
	}
	for _, label := range c.LabelIndexes {
		if names[storage.LabelIndex(label)] {
			p.field("LabelIndexes", fmt.Sprintf("%q", label), "Indexers has an index of this name already")
		}
	}
}

// isIndexName reports whether a selector can ask for an index of this name.
func isIndexName(name string) bool {
	for _, prefix := range []string{storage.FieldIndex(""), storage.LabelIndex("")} {
		if rest, ok := strings.CutPrefix(name, prefix); ok && rest != "" {
			return true
		}
	}
	return false
}

// validateTypes makes one object and one list, and looks whether they fit.
func (c Config) validateTypes(p *problems) {
	if c.NewFunc != nil {
		object := c.NewFunc()
		if v := reflect.ValueOf(object); v.Kind() != reflect.Pointer || v.IsNil() {
			p.field("NewFunc", fmt.Sprintf("a function that returns the %T %v", object, object), "want a pointer to an empty object")
			return
		}
		if c.Codec != nil {
			if err := runtime.CheckCodec(c.Codec, object); err != nil {
				*p = append(*p, fmt.Errorf("cacher.Config.Codec is %T: it does not encode and decode %T: %w", c.Codec, object, err))
			}
		}
	}
	if c.NewListFunc != nil {
		list := c.NewListFunc()
		if list == nil {
			p.field("NewListFunc", "a function that returns nil", "want an empty list")
			return
		}
		items, err := itemsOf(list)
		if err != nil {
			p.field("NewListFunc", fmt.Sprintf("a function that returns %T", list), err.Error())
			return
		}
		if c.NewFunc == nil {
			return
		}
		if item, object := items.Type().Elem(), reflect.TypeOf(c.NewFunc()).Elem(); item != object {
			p.field("NewListFunc", fmt.Sprintf("a function that returns %T", list), fmt.Sprintf("its items are of type %v, NewFunc makes %v", item, object))
		}
	}
}
