// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"reflect"
	"testing"
	"time"

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
	"StaleReads":               WithStaleReads(1),
	"ConsistentGetFromStorage": WithConsistentGetFromStorage(),
	"WatchBuffer":              WithWatchBuffer(1),
	"EncodingBytes":            WithEncodingBytes(1),
	"ParkedTimeout":            WithParkedTimeout(time.Second),
	"CarryWatchersOverRelist":  WithWatchersCarriedOverRelist(),
	"ConsistencyCheckInterval": WithConsistencyCheckInterval(time.Second),
	"LazyStart":                WithLazyStart(),
	"IdleTimeout":              WithIdleTimeout(time.Second),
	"DisableSizeEstimation":    WithoutSizeEstimation(),
	"Metrics":                  WithMetrics(&metrics.Metrics{}),
}

// Each field that k8s.io/apiserver's configuration does not have can be set by
// an option, and an option sets its own field and no other.
func TestEveryNewFieldHasAnOption(t *testing.T) {
	fields := reflect.TypeFor[Config]()
	isNew := false
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		if _, ok := optionOf[name]; isNew && !ok {
			t.Errorf("there is no option for %s", name)
		}
		isNew = isNew || name == "Clock"
	}
	for name, option := range optionOf {
		var o options
		option(&o)
		config := &Config{}
		for _, set := range o.config {
			set(config)
		}
		for i := range fields.NumField() {
			if field := fields.Field(i).Name; reflect.ValueOf(config).Elem().Field(i).IsZero() == (field == name) {
				t.Errorf("the option of %s: %s is %v", name, field, reflect.ValueOf(config).Elem().Field(i))
			}
		}
	}
}
