// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-watchcache/watchcache/cacher"
)

// refused are options that can't be meant, and the words that the error must have.
var refused = map[string]struct {
	options []cacher.Option
	says    []string
}{
	"an option":             {[]cacher.Option{cacher.WithMetrics(nil), nil}, []string{"Option 2 of 2 is nil"}},
	"a storage function":    {[]cacher.Option{cacher.WithRawStorage(nil)}, []string{"WithRawStorage", "nil"}},
	"a function":            {[]cacher.Option{cacher.Configure(nil)}, []string{"Configure", "nil"}},
	"a window":              {[]cacher.Option{windowBytes(-1)}, []string{"cacher.Config.WindowBytes is -1"}},
	"a label":               {[]cacher.Option{labelIndexes("not a label")}, []string{`LabelIndexes is "not a label"`}},
	"a label twice":         {[]cacher.Option{labelIndexes("app", "app")}, []string{`LabelIndexes is "app"`, "already"}},
	"no resource to set":    {[]cacher.Option{cacher.ForResource(schema.GroupResource{}, func(*cacher.Config) {})}, []string{"ForResource", "empty"}},
	"nothing to set":        {[]cacher.Option{cacher.ForResource(widgets, nil)}, []string{`ForResource("widgets.example.com")`, "nil"}},
	"a window of one":       {[]cacher.Option{cacher.ForResource(widgets, func(c *cacher.Config) { c.WindowBytes = -1 })}, []string{`ForResource("widgets.example.com")`, "WindowBytes is -1"}},
	"one that is not there": {[]cacher.Option{cacher.ForResource(widgets, func(*cacher.Config) {}), cacher.Except(widgets)}, []string{`ForResource("widgets.example.com")`, "uncached"}},
	"no flags":              {[]cacher.Option{cacher.WithOptions(nil)}, []string{"WithOptions", "nil"}},
	"flags twice":           {[]cacher.Option{cacher.WithOptions(cacher.NewOptions()), cacher.WithOptions(cacher.NewOptions())}, []string{"WithOptions", "twice"}},
	"a flag and a function": {[]cacher.Option{cacher.WithOptions(cacher.NewOptions()), windowBytes(8)}, []string{"Config.WindowBytes", "--watch-cache-window-bytes"}},
	"a flag":                {[]cacher.Option{cacher.WithOptions(&cacher.Options{Config: cacher.Config{WindowBytes: -1}})}, []string{"WithOptions", "WindowBytes is -1"}},
	"no flag":               {[]cacher.Option{cacher.WithOptions(&cacher.Options{Config: cacher.Config{WatchBuffer: 7}})}, []string{"WithOptions", "no flag"}},
	"an index of nothing":   {[]cacher.Option{cacher.Except(widgets), cacher.WithOptions(flags("--watch-cache-label-indexes=widgets.example.com#b"))}, []string{`ForResource("widgets.example.com")`, "uncached"}},
	"only nothing":          {[]cacher.Option{cacher.Only()}, []string{"Only names no resource"}},
	"except nothing":        {[]cacher.Option{cacher.Except()}, []string{"Except names no resource"}},
	"an empty resource":     {[]cacher.Option{cacher.Only(schema.GroupResource{Group: "g"})}, []string{"Only", "empty"}},
	"a resource twice":      {[]cacher.Option{cacher.Only(widgets, widgets)}, []string{"Only", "widgets.example.com", "twice"}},
	"only and except":       {[]cacher.Option{cacher.Only(widgets), cacher.Except(widgets)}, []string{"Except", "widgets.example.com", "Only"}},
	"only this, only that":  {[]cacher.Option{cacher.Only(widgets), cacher.Only(schema.GroupResource{Resource: "pods"})}, []string{"Only", "no resource is named by each"}},
}

func windowBytes(n int64) cacher.Option {
	return cacher.Configure(func(c *cacher.Config) { c.WindowBytes = n })
}

func labelIndexes(labels ...string) cacher.Option {
	return cacher.Configure(func(c *cacher.Config) { c.LabelIndexes = labels })
}

var widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}

// REGRESSIONS 112: invalid options are refused before anything is opened, by option or
// field and value.
func TestOptionsAreRefused(t *testing.T) {
	for name, test := range refused {
		t.Run(name, func(t *testing.T) {
			raw := &rawStores{}
			options := test.options
			if name != "an option" {
				options = append([]cacher.Option{cacher.WithRawStorage(raw.open)}, options...)
			}
			_, _, err := cacher.CachedResources(options...)
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

// One error has everything that is wrong.
func TestOptionsAreRefusedAtOnce(t *testing.T) {
	_, _, err := cacher.CachedResources(windowBytes(-1), nil, cacher.Only(), cacher.WithRawStorage(nil), cacher.Configure(func(c *cacher.Config) { c.IdleTimeout = -1 }))
	for _, word := range []string{"WindowBytes is -1", "Option 2 of 5", "Only names no", "WithRawStorage", "IdleTimeout is -1ns"} {
		require.ErrorContains(t, err, word)
	}
}

// Of two options for one thing the later one counts, and settings of one resource count
// more than those of all.
func TestForResource(t *testing.T) {
	first, raw := &rawStores{}, &rawStores{}
	decorator := cacher.Decorator(
		cacher.WithRawStorage(first.open),
		cacher.Configure(func(c *cacher.Config) { c.WindowBytes, c.MaxFallbackLists = 1, 31 }),
		cacher.ForResource(widgets, func(c *cacher.Config) { c.WindowBytes, c.LabelIndexes, c.WatchBuffer = 11, []string{"a"}, 13 }),
		cacher.ForResource(widgets, func(c *cacher.Config) { c.WatchBuffer = 12 }),
		cacher.WithRawStorage(raw.open),
		cacher.Configure(func(c *cacher.Config) { c.WindowBytes, c.WatchBuffer, c.LabelIndexes = 21, 22, []string{"b"} }))
	for _, test := range []struct {
		resource                          schema.GroupResource
		windowBytes, buffer, lists, label any
	}{
		{widgets, int64(11), 12, 31, []string{"a"}},
		{schema.GroupResource{Group: "example.org", Resource: "widgets"}, int64(21), 22, 31, []string{"b"}},
	} {
		asked := askedFor(nil)
		asked.config.GroupResource = test.resource
		got, destroy, err := asked.of(decorator)
		require.NoError(t, err)
		t.Cleanup(destroy)
		config := got.(*cacher.Cacher).Config()
		require.Equal(t, []any{test.windowBytes, test.buffer, test.lists, test.label},
			[]any{config.WindowBytes, config.WatchBuffer, config.MaxFallbackLists, config.LabelIndexes}, "%s", test.resource)
	}
	require.Zero(t, first.opened.Load())
	require.EqualValues(t, 2, raw.opened.Load())
}

// An error that all resources have is reported once, and not for each resource that has
// settings of its own.
func TestForResourceRepeatsNoError(t *testing.T) {
	_, _, err := cacher.CachedResources(windowBytes(-1), cacher.ForResource(widgets, func(c *cacher.Config) { c.MaxFallbackLists = 3 }))
	require.EqualError(t, err, "cacher.Config.WindowBytes is -1: it must not be negative")
}
