// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/metrics"
)

// refused are options that can't be meant, and what must be said of each.
var refused = map[string]struct {
	options []cacher.Option
	says    []string
}{
	"an option":             {[]cacher.Option{cacher.WithLazyStart(), nil}, []string{"Option 2 of 2 is nil"}},
	"a default":             {[]cacher.Option{cacher.Defaults(nil)}, []string{"Option 2 of 2 is nil"}},
	"a storage function":    {[]cacher.Option{cacher.WithRawStorage(nil)}, []string{"WithRawStorage", "nil"}},
	"two storage functions": {[]cacher.Option{cacher.WithRawStorage((&rawStores{}).open), cacher.WithRawStorage((&rawStores{}).open)}, []string{"WithRawStorage", "twice"}},
	"a progress function":   {[]cacher.Option{cacher.WithWatchProgress(nil)}, []string{"WithWatchProgress", "nil"}},
	"a window":              {[]cacher.Option{cacher.WithWindowBytes(-1)}, []string{"cacher.WithWindowBytes: ", "WindowBytes is -1"}},
	"a default window":      {[]cacher.Option{cacher.Defaults(cacher.WithWindowBytes(-1))}, []string{"WindowBytes is -1"}},
	"two windows":           {[]cacher.Option{cacher.WithWindowBytes(7), cacher.WithWindowBytes(8)}, []string{"WindowBytes", "by WithWindowBytes to 7 and by WithWindowBytes to 8"}},
	"a window and none":     {[]cacher.Option{cacher.WithWindowBytes(0), cacher.WithWindowBytes(8)}, []string{"WindowBytes", "to 0 and", "to 8"}},
	"two metrics":           {[]cacher.Option{cacher.WithMetrics(&metrics.Metrics{}), cacher.WithMetrics(&metrics.Metrics{})}, []string{"Config.Metrics", "two options"}},
	"metrics and none":      {[]cacher.Option{cacher.WithMetrics(nil), cacher.WithMetrics(&metrics.Metrics{})}, []string{"Config.Metrics", "two options"}},
	"a history":             {[]cacher.Option{cacher.WithEventsHistoryWindow(-time.Second)}, []string{"WithEventsHistoryWindow: ", "EventsHistoryWindow is -1s"}},
	"an interval":           {[]cacher.Option{cacher.WithBookmarkInterval(-time.Second)}, []string{"WithBookmarkInterval: ", "BookmarkInterval is -1s"}},
	"a freshness timeout":   {[]cacher.Option{cacher.WithFreshnessTimeout(-time.Second)}, []string{"WithFreshnessTimeout: ", "FreshnessTimeout is -1s"}},
	"a parked timeout":      {[]cacher.Option{cacher.WithParkedTimeout(-time.Second)}, []string{"WithParkedTimeout: ", "ParkedTimeout is -1s"}},
	"an idle timeout":       {[]cacher.Option{cacher.WithIdleTimeout(-time.Second)}, []string{"WithIdleTimeout: ", "IdleTimeout is -1s"}},
	"a negative buffer":     {[]cacher.Option{cacher.WithWatchBuffer(-1)}, []string{"WithWatchBuffer: ", "WatchBuffer is -1"}},
	"a huge buffer":         {[]cacher.Option{cacher.WithWatchBuffer(1 << 40)}, []string{"WatchBuffer is 1099511627776", "0 to 65536"}},
	"an endless check":      {[]cacher.Option{cacher.WithConsistencyCheckInterval(math.MaxInt64)}, []string{"WithConsistencyCheckInterval: ", "2562047h47m16.854775807s", "at most 8760h0m0s"}},
	"too many stale reads":  {[]cacher.Option{cacher.WithStaleReads(math.MaxInt)}, []string{"StaleReads is 9223372036854775807", "at most 10000"}},
	"a label":               {[]cacher.Option{cacher.WithLabelIndexes("not a label")}, []string{`LabelIndexes is "not a label"`}},
	"no label":              {[]cacher.Option{cacher.WithLabelIndexes("")}, []string{`LabelIndexes is ""`}},
	"a label twice":         {[]cacher.Option{cacher.WithLabelIndexes("app", "app")}, []string{`LabelIndexes is "app"`, "already"}},
	"no resource to set":    {[]cacher.Option{cacher.ForResource(schema.GroupResource{}, cacher.WithWindowBytes(1))}, []string{"ForResource", "empty"}},
	"nothing to set":        {[]cacher.Option{cacher.ForResource(widgets)}, []string{`ForResource("widgets.example.com")`, "no options"}},
	"nil for one":           {[]cacher.Option{cacher.ForResource(widgets, nil)}, []string{`ForResource("widgets.example.com")`, "Option 1 of 1 is nil"}},
	"a window of one":       {[]cacher.Option{cacher.ForResource(widgets, cacher.WithWindowBytes(-1))}, []string{`ForResource("widgets.example.com")`, "WithWindowBytes: ", "WindowBytes is -1"}},
	"two windows of one":    {[]cacher.Option{cacher.ForResource(widgets, cacher.WithWindowBytes(7)), cacher.ForResource(widgets, cacher.WithWindowBytes(8))}, []string{`ForResource("widgets.example.com")`, "WindowBytes", "to 7", "to 8"}},
	"a default of one":      {[]cacher.Option{cacher.Defaults(cacher.ForResource(widgets, cacher.WithWindowBytes(-1)))}, []string{`ForResource("widgets.example.com")`, "WindowBytes is -1"}},
	"one that is not there": {[]cacher.Option{cacher.ForResource(widgets, cacher.WithWindowBytes(1)), cacher.Except(widgets)}, []string{`ForResource("widgets.example.com")`, "uncached"}},
	"only, for one":         {[]cacher.Option{cacher.ForResource(widgets, cacher.Only(widgets))}, []string{"ForResource", "not about one cache"}},
	"defaults, for one":     {[]cacher.Option{cacher.ForResource(widgets, cacher.Defaults(cacher.WithWindowBytes(1)))}, []string{"ForResource", "not about one cache"}},
	"storage, for one":      {[]cacher.Option{cacher.ForResource(widgets, cacher.WithRawStorage((&rawStores{}).open))}, []string{"ForResource", "not about one cache"}},
	"checks, for one":       {[]cacher.Option{cacher.ForResource(widgets, cacher.WithServerEtcdChecks())}, []string{"ForResource", "not about one cache"}},
	"flags, for one":        {[]cacher.Option{cacher.ForResource(widgets, cacher.WithOptions(cacher.NewOptions()))}, []string{"ForResource", "not about one cache"}},
	"one, for one":          {[]cacher.Option{cacher.ForResource(widgets, cacher.ForResource(widgets, cacher.WithWindowBytes(1)))}, []string{"ForResource", "not about one cache"}},
	"no flags":              {[]cacher.Option{cacher.WithOptions(nil)}, []string{"WithOptions", "nil"}},
	"flags twice":           {[]cacher.Option{cacher.WithOptions(cacher.NewOptions()), cacher.WithOptions(cacher.NewOptions())}, []string{"WithOptions", "twice"}},
	"a flag and an option":  {[]cacher.Option{cacher.WithOptions(cacher.NewOptions()), cacher.WithWindowBytes(8)}, []string{"WindowBytes", "by WithOptions to 134217728 and by WithWindowBytes to 8"}},
	"a flag":                {[]cacher.Option{cacher.WithOptions(flags("--watch-cache-window-bytes=-1"))}, []string{"WithOptions", "--watch-cache-window-bytes is -1"}},
	"an index and a flag":   {[]cacher.Option{cacher.ForResource(widgets, cacher.WithLabelIndexes("a")), cacher.WithOptions(flags("--watch-cache-label-indexes=widgets.example.com#b"))}, []string{`ForResource("widgets.example.com")`, "LabelIndexes", "[a]", "[b]"}},
	"an index of nothing":   {[]cacher.Option{cacher.Except(widgets), cacher.WithOptions(flags("--watch-cache-label-indexes=widgets.example.com#b"))}, []string{`ForResource("widgets.example.com")`, "uncached"}},
	"labels of two options": {[]cacher.Option{cacher.WithLabelIndexes("app"), cacher.WithLabelIndexes("tier")}, []string{"LabelIndexes", "[app]", "[tier]"}},
	"only nothing":          {[]cacher.Option{cacher.Only()}, []string{"Only names no resource"}},
	"except nothing":        {[]cacher.Option{cacher.Except()}, []string{"Except names no resource"}},
	"an empty resource":     {[]cacher.Option{cacher.Only(schema.GroupResource{Group: "g"})}, []string{"Only", "empty"}},
	"a resource twice":      {[]cacher.Option{cacher.Only(widgets, widgets)}, []string{"Only", "widgets.example.com", "twice"}},
	"only and except":       {[]cacher.Option{cacher.Only(widgets), cacher.Except(widgets)}, []string{"Except", "widgets.example.com", "Only"}},
	"only this, only that":  {[]cacher.Option{cacher.Only(widgets), cacher.Only(schema.GroupResource{Resource: "pods"})}, []string{"Only", "no resource is named by each"}},
}

var widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}

// REGRESSIONS 112: what can't be meant is said before anything is opened, by
// option or field and value.
func TestOptionsAreRefused(t *testing.T) {
	for name, test := range refused {
		t.Run(name, func(t *testing.T) {
			raw := &rawStores{}
			options := append([]cacher.Option{cacher.Defaults(cacher.WithRawStorage(raw.open))}, test.options...)
			if strings.Contains(name, "option") || name == "two storage functions" {
				options = test.options
			}
			_, err := cacher.SelectionOf(options...)
			require.Error(t, err)
			_, _, opening := askedFor(nil).of(cacher.Decorator(options...))
			require.EqualError(t, opening, err.Error())
			require.Zero(t, raw.opened.Load())
			for _, word := range test.says {
				require.ErrorContains(t, err, word)
			}
			require.NotContains(t, err.Error(), "\n", "one reason")
		})
	}
}

// All that is wrong is said at once.
func TestOptionsAreRefusedAtOnce(t *testing.T) {
	_, err := cacher.SelectionOf(cacher.WithWindowBytes(-1), nil, cacher.Only(), cacher.WithRawStorage(nil), cacher.WithIdleTimeout(-1))
	for _, word := range []string{"WindowBytes is -1", "Option 2 of 5", "Only names no", "WithRawStorage", "IdleTimeout is -1ns"} {
		require.ErrorContains(t, err, word)
	}
}

// Defaults hold unless another option sets the same, wherever they stand.
func TestDefaults(t *testing.T) {
	mine, theirs := &rawStores{}, &rawStores{}
	for _, options := range [][]cacher.Option{
		{cacher.Defaults(cacher.WithRawStorage(mine.open), cacher.WithWatchBuffer(3), cacher.WithStaleReads(4)), cacher.WithRawStorage(theirs.open), cacher.WithWatchBuffer(5)},
		{cacher.WithRawStorage(theirs.open), cacher.WithWatchBuffer(5), cacher.Defaults(cacher.WithRawStorage(mine.open), cacher.WithWatchBuffer(3), cacher.WithStaleReads(4))},
	} {
		got, destroy, err := askedFor(nil).of(cacher.Decorator(options...))
		require.NoError(t, err)
		defer destroy()
		require.Equal(t, 5, got.(*cacher.Cacher).Config().WatchBuffer)
		require.Equal(t, 4, got.(*cacher.Cacher).Config().StaleReads)
	}
	require.Zero(t, mine.opened.Load())
	require.EqualValues(t, 2, theirs.opened.Load())
}

// Options for one resource take precedence over options for all resources, and
// both over defaults.
func TestForResource(t *testing.T) {
	raw := &rawStores{}
	decorator := cacher.Decorator(
		cacher.ForResource(widgets, cacher.WithWindowBytes(11), cacher.WithLabelIndexes("a")),
		cacher.ForResource(widgets, cacher.WithWatchBuffer(12)),
		cacher.WithRawStorage(raw.open), cacher.WithWindowBytes(21), cacher.WithWatchBuffer(22), cacher.WithLabelIndexes("b"),
		cacher.Defaults(cacher.WithStaleReads(31), cacher.WithWatchBuffer(32), cacher.ForResource(widgets, cacher.WithWindowBytes(33), cacher.WithStaleReads(34))))
	for _, test := range []struct {
		resource                          schema.GroupResource
		windowBytes, buffer, stale, label any
	}{
		{widgets, int64(11), 12, 34, []string{"a"}},
		{schema.GroupResource{Group: "example.org", Resource: "widgets"}, int64(21), 22, 31, []string{"b"}},
	} {
		asked := askedFor(nil)
		asked.config.GroupResource = test.resource
		got, destroy, err := asked.of(decorator)
		require.NoError(t, err)
		t.Cleanup(destroy)
		config := got.(*cacher.Cacher).Config()
		require.Equal(t, []any{test.windowBytes, test.buffer, test.stale, test.label},
			[]any{config.WindowBytes, config.WatchBuffer, config.StaleReads, config.LabelIndexes}, "%s", test.resource)
	}
}

// An error that all resources have is said once, and not for each resource that
// has options of its own.
func TestForResourceRepeatsNoError(t *testing.T) {
	_, err := cacher.SelectionOf(cacher.WithWindowBytes(-1), cacher.ForResource(widgets, cacher.WithStaleReads(3)))
	require.EqualError(t, err, "cacher.WithWindowBytes: cacher.Config.WindowBytes is -1: it must not be negative")
}
