// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apiserver/pkg/registry/generic"

	"github.com/kube-watchcache/watchcache/metrics"
)

var optionOf = map[string]Option{
	"EventsHistoryWindow":      WithEventsHistoryWindow(time.Second),
	"LabelIndexes":             WithLabelIndexes("app", "tier"),
	"WatchProgress":            WithWatchProgress(func() bool { return true }),
	"WindowBytes":              WithWindowBytes(1),
	"DispatchBudget":           WithDispatchBudget(time.Second),
	"BookmarkInterval":         WithBookmarkInterval(time.Second),
	"FreshnessTimeout":         WithFreshnessTimeout(time.Second),
	"StorageTimeout":           WithStorageTimeout(time.Second),
	"StaleReads":               WithStaleReads(1),
	"ConsistentGetFromStorage": WithConsistentGetFromStorage(),
	"WatchBuffer":              WithWatchBuffer(1),
	"EncodingBytes":            WithEncodingBytes(1),
	"EncodingPercent":          WithEncodingPercent(1),
	"Lists":                    WithLists(&Lists{}),
	"ParkedTimeout":            WithParkedTimeout(time.Second),
	"InitialEventsTimeout":     WithInitialEventsTimeout(time.Second),
	"InitialEventsBytes":       WithInitialEventsBytes(1),
	"CarryWatchersOverRelist":  WithWatchersCarriedOverRelist(),
	"ConsistencyCheckInterval": WithConsistencyCheckInterval(time.Second),
	"ListStorage":              WithListStorage(),
	"LazyStart":                WithLazyStart(),
	"IdleTimeout":              WithIdleTimeout(time.Second),
	"DisableSizeEstimation":    WithoutSizeEstimation(),
	"ShareEqualParts":          WithShareEqualParts(),
	"Metrics":                  WithMetrics(&metrics.Metrics{}),
	"DisableShippedMetrics":    WithoutShippedMetrics(),
}

// shortened are the names of options that are not With and the field's name.
var shortened = map[string]string{
	"CarryWatchersOverRelist": "WithWatchersCarriedOverRelist",
	"DisableSizeEstimation":   "WithoutSizeEstimation",
	"DisableShippedMetrics":   "WithoutShippedMetrics",
}

// Each field that k8s.io/apiserver's configuration does not have can be set by
// an option, and an option sets its own field and no other.
func TestEveryNewFieldHasAnOption(t *testing.T) {
	fields := reflect.TypeFor[Config]()
	isNew := false
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		_, ok := optionOf[name]
		if isNew {
			assert.True(t, ok, "there is no option for %s", name)
		}
		isNew = isNew || name == "Clock"
	}
	for name, option := range optionOf {
		var o options
		option(&o)
		config := &Config{}
		for _, s := range o.settings {
			s.set(config)
			assert.Equal(t, name, s.field, "the field that the option of %s says that it sets", name)
			if s.option != "With"+name {
				assert.Equal(t, shortened[name], s.option, "the name that the option of %s says that it has", name)
			}
		}
		for i := range fields.NumField() {
			field := fields.Field(i).Name
			assert.NotEqual(t, field == name, reflect.ValueOf(config).Elem().Field(i).IsZero(), "the option of %s: %s is %v", name, field, reflect.ValueOf(config).Elem().Field(i))
		}
	}
}

// Without WithRawStorage the storage is k8s.io/apiserver's, over etcd.
func TestDefaultStorageIsListed(t *testing.T) {
	assert.True(t, optionsOf(nil).prefersLists)
	assert.False(t, optionsOf([]Option{WithRawStorage(generic.NewRawStorage)}).prefersLists, "nobody knows another storage")
}
