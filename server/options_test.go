// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/metrics"
)

var widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}

// rawStores opens stores in memory and counts them.
type rawStores struct{ opened, destroyed atomic.Int64 }

func (r *rawStores) open(q decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
	r.opened.Add(1)
	return memstore.New(q.ResourcePrefix, poddata.New), func() { r.destroyed.Add(1) }, nil
}

// openPods opens a storage of pods, under the name of another resource.
func openPods(gr schema.GroupResource, options ...cacher.Option) (storage.Interface, factory.DestroyFunc, error) {
	return openPodsWith(poddata.Codec(), gr, options...)
}

func openPodsWith(codec runtime.Codec, gr schema.GroupResource, options ...cacher.Option) (storage.Interface, factory.DestroyFunc, error) {
	config := storagebackend.NewDefaultConfig("/registry", codec).ForResource(gr)
	return decoration.Call(cacher.Decorator(options...), decoration.Request{Config: config, ResourcePrefix: poddata.Prefix, KeyFunc: poddata.Key, NewFunc: poddata.New, NewListFunc: poddata.NewList, GetAttrsFunc: poddata.Attrs})
}

// parsed returns options whose flags were parsed.
func parsed(args ...string) (*Options, error) {
	options := NewOptions()
	set := pflag.NewFlagSet("test", pflag.ContinueOnError)
	options.AddFlags(set)
	return options, set.Parse(args)
}

// flags is parsed for flags that can be parsed.
func flags(args ...string) *Options {
	options, err := parsed(args...)
	if err != nil {
		panic(err)
	}
	return options
}

// configured returns the configuration of a cache of widgets.
func configured(t *testing.T, options ...cacher.Option) cacher.Config {
	t.Helper()
	got, destroy, err := openPods(widgets, append(options, cacher.WithRawStorage(decoration.AsRaw((&rawStores{}).open)))...)
	require.NoError(t, err)
	t.Cleanup(destroy)
	return got.(*cacher.Cacher).Config()
}

// Without flags a server has the caches that it has without Options.
func TestFlagDefaults(t *testing.T) {
	require.Empty(t, NewOptions().Validate())
	plain, flagged := configured(t), configured(t, WithOptions(flags()))
	for _, config := range []*cacher.Config{&plain, &flagged} {
		value := reflect.ValueOf(config).Elem()
		for i := range value.NumField() {
			if kind := value.Field(i).Kind(); kind == reflect.Func || kind == reflect.Interface || kind == reflect.Map || kind == reflect.Pointer {
				value.Field(i).SetZero()
			}
		}
	}
	require.Equal(t, plain, flagged)
}

// Each flag sets its field, and the flags' zeros mean what their help says.
func TestFlagsHaveAnEffect(t *testing.T) {
	for _, test := range []struct {
		flag  string
		field func(cacher.Config) any
		want  any
	}{
		{"--watch-cache-window=2m", func(c cacher.Config) any { return c.EventsHistoryWindow }, 2 * time.Minute},
		{"--watch-cache-window=0", func(c cacher.Config) any { return c.EventsHistoryWindow }, cacher.DefaultEventsHistoryWindow},
		{"--watch-cache-window-bytes=1Gi", func(c cacher.Config) any { return c.WindowBytes }, int64(1 << 30)},
		{"--watch-cache-window-bytes=12345", func(c cacher.Config) any { return c.WindowBytes }, int64(12345)},
		{"--watch-cache-window-bytes=1.5Ki", func(c cacher.Config) any { return c.WindowBytes }, int64(1536)},
		{"--watch-cache-window-bytes=1e3", func(c cacher.Config) any { return c.WindowBytes }, int64(1000)},
		{"--watch-cache-encoding-bytes=1Mi", func(c cacher.Config) any { return c.EncodingBytes }, int64(1 << 20)},
		{"--watch-cache-encoding-bytes=0", func(c cacher.Config) any { return c.EncodingBytes }, int64(-1)},
		{"--watch-cache-freshness-timeout=7s", func(c cacher.Config) any { return c.FreshnessTimeout }, 7 * time.Second},
		{"--watch-cache-storage-timeout=20s", func(c cacher.Config) any { return c.StorageTimeout }, 20 * time.Second},
		{"--watch-cache-max-fallback-lists=8", func(c cacher.Config) any { return c.MaxFallbackLists }, 8},
		{"--watch-cache-max-fallback-lists=0", func(c cacher.Config) any { return c.MaxFallbackLists }, -1},
		{"--watch-cache-consistency-check-interval=9s", func(c cacher.Config) any { return c.ConsistencyCheckInterval }, 9 * time.Second},
		{"--watch-cache-consistency-check-interval=0", func(c cacher.Config) any { return c.ConsistencyCheckInterval }, time.Duration(-1)},
		{"--watch-cache-consistent-get-from-storage", func(c cacher.Config) any { return c.ConsistentGetFromStorage }, true},
		{"--watch-cache-lazy-start", func(c cacher.Config) any { return c.LazyStart }, true},
		{"--watch-cache-idle-timeout=10m", func(c cacher.Config) any { return c.IdleTimeout }, 10 * time.Minute},
		{"--watch-cache-label-indexes=widgets.example.com#a,widgets.example.com#example.com/b,pods#c", func(c cacher.Config) any { return c.LabelIndexes }, []string{"a", "example.com/b"}},
		{"--watch-cache-label-indexes=widgets#a", func(c cacher.Config) any { return c.LabelIndexes }, []string(nil)},
	} {
		options := flags(test.flag)
		require.Empty(t, options.Validate(), test.flag)
		config := configured(t, WithOptions(options))
		require.Equal(t, test.want, test.field(config), test.flag)
	}
}

// The label indexes of a program are the flag's default; the flag, which may be
// repeated, replaces them.
func TestLabelIndexesFlag(t *testing.T) {
	parse := func(args ...string) []string {
		options := NewOptions()
		options.LabelIndexes = []string{"widgets.example.com#site"}
		set := pflag.NewFlagSet("test", pflag.ContinueOnError)
		options.AddFlags(set)
		require.NoError(t, set.Parse(args))
		require.Contains(t, set.FlagUsages(), "(default [widgets.example.com#site])")
		require.Contains(t, set.FlagUsages(), "(default 128Mi)")
		return options.LabelIndexes
	}
	require.Equal(t, []string{"widgets.example.com#site"}, parse())
	require.Equal(t, []string{"widgets.example.com#a", "pods#app", "widgets.example.com#b"},
		parse("--watch-cache-label-indexes=widgets.example.com#a,pods#app", "--watch-cache-label-indexes=widgets.example.com#b"))
	require.Empty(t, parse("--watch-cache-label-indexes="))
}

// The flag may be repeated and replaces the resources of a program; a resource of the
// core group has no group.
func TestShippedFlag(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for _, test := range []struct {
		flags  []string
		widget bool // on our cache
		pod    bool
	}{
		{nil, false, true}, // as the program says
		{[]string{"--watch-cache-shipped="}, true, true},
		{[]string{"--watch-cache-shipped=pods"}, true, false},
		{[]string{"--watch-cache-shipped=pods,pods", "--watch-cache-shipped=widgets.example.com"}, false, false},
		{[]string{"--watch-cache-shipped=widgets,pods.example.com"}, true, true}, // others
		{[]string{"--watch-cache-implementation=shipped", "--watch-cache-shipped="}, false, false},
		{[]string{"--watch-cache-implementation=shipped", "--watch-cache-implementation=watchcache"}, false, true},
	} {
		options := NewOptions()
		options.Shipped = []string{"widgets.example.com"}
		set := pflag.NewFlagSet("test", pflag.ContinueOnError)
		options.AddFlags(set)
		require.Contains(t, set.FlagUsages(), `(default watchcache)`)
		require.NoError(t, set.Parse(test.flags))
		require.Empty(t, options.Validate())
		index := cacher.ForResource(widgets, func(c *cacher.Config) { c.LabelIndexes = []string{"a"} })
		selected, err := cacher.Select(WithOptions(options), index)
		require.NoError(t, err, "settings for a resource that went back are no error")
		require.Equal(t, []bool{test.widget, test.pod}, []bool{selected.Cached(widgets), selected.Cached(pods)}, test.flags)
	}
}

// A Decorator alone has no shipped cacher to open; it opens nothing else either.
func TestDecoratorRefusesShipped(t *testing.T) {
	raw := &rawStores{}
	for _, flag := range []string{"--watch-cache-implementation=shipped", "--watch-cache-shipped=widgets.example.com"} {
		_, _, err := openPods(widgets, cacher.WithRawStorage(decoration.AsRaw(raw.open)), WithOptions(flags(flag)))
		require.ErrorContains(t, err, "the shipped cacher is chosen for widgets.example.com")
		require.ErrorContains(t, err, "genericregistry.StorageWithCacher")
	}
	require.Zero(t, raw.opened.Load())
	_, err := cacher.Select(WithOptions(&Options{Implementation: "theirs", Shipped: []string{"A"}}))
	require.ErrorContains(t, err, `--watch-cache-implementation: "theirs" is not a watch cache: want "watchcache" or "shipped"`)
	require.ErrorContains(t, err, `--watch-cache-shipped names "A"`)
}

// A shadow needs two caches to compare.
func TestShadowOfTheShippedCacher(t *testing.T) {
	options := &Options{Shadow: 0.01, Implementation: ImplementationShipped}
	wrong := options.Validate()
	require.Len(t, wrong, 1)
	for _, word := range []string{"--watch-cache-shadow is 0.01", "--watch-cache-implementation=shipped", "want one of them"} {
		require.ErrorContains(t, wrong[0], word)
	}
	_, err := cacher.Select(WithOptions(options))
	require.ErrorContains(t, err, wrong[0].Error())
	options.Implementation = ImplementationWatchCache
	require.Empty(t, options.Validate())
	for options, want := range map[*Options]bool{options: true, NewOptions(): false} {
		selected, err := cacher.Select(WithOptions(options))
		require.NoError(t, err)
		require.Equal(t, want, selected.InShadow)
	}
}

// Invalid options are refused before anything is opened, by option or field and value.
func TestWithOptionsRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		options []cacher.Option
		says    []string
	}{
		"nil":                 {[]cacher.Option{WithOptions(nil)}, []string{"server.WithOptions", "nil"}},
		"a number":            {[]cacher.Option{WithOptions(&Options{WindowBytes: -1})}, []string{"server.WithOptions", "WindowBytes is -1"}},
		"an index of nothing": {[]cacher.Option{cacher.Except(widgets), WithOptions(flags("--watch-cache-label-indexes=widgets.example.com#b"))}, []string{`ForResource("widgets.example.com")`, "uncached"}},
	} {
		raw := &rawStores{}
		_, err := cacher.Select(test.options...)
		require.Error(t, err, name)
		_, _, opening := openPods(widgets, append([]cacher.Option{cacher.WithRawStorage(decoration.AsRaw(raw.open))}, test.options...)...)
		require.EqualError(t, opening, err.Error())
		require.Zero(t, raw.opened.Load())
		for _, word := range test.says {
			require.ErrorContains(t, err, word)
		}
		require.NotContains(t, err.Error(), "\n", "one reason")
	}
}

// Of an option for a field and its flag, the later one counts; a flag with its default
// changes nothing.
func TestLaterOptionCounts(t *testing.T) {
	configure := cacher.Configure(func(c *cacher.Config) { c.WindowBytes = 8 })
	for _, test := range []struct {
		options []cacher.Option
		want    int64
	}{
		{[]cacher.Option{configure, WithOptions(flags())}, 8},
		{[]cacher.Option{configure, WithOptions(flags("--watch-cache-window-bytes=9"))}, 9},
		{[]cacher.Option{WithOptions(flags("--watch-cache-window-bytes=9")), configure}, 8},
	} {
		require.Equal(t, test.want, configured(t, test.options...).WindowBytes)
	}
}

// An error about a flag names the flag and the value.
func TestFlagsAreRefused(t *testing.T) {
	for _, test := range []struct {
		flag string
		says []string
	}{
		{"--watch-cache-window=-1s", []string{"\"-1s\" for \"--watch-cache-window\"", "negative"}},
		{"--watch-cache-window=9000h", []string{"for \"--watch-cache-window\"", "at most 8760h0m0s"}},
		{"--watch-cache-window-bytes=0", []string{"for \"--watch-cache-window-bytes\"", "positive"}},
		{"--watch-cache-window-bytes=2Ti", []string{"for \"--watch-cache-window-bytes\"", "at most"}},
		{"--watch-cache-window-bytes=0.5", []string{"--watch-cache-window-bytes", "0.5", "whole number"}},
		{"--watch-cache-window-bytes=1e30", []string{"--watch-cache-window-bytes", "1e30", "64 bits"}},
		{"--watch-cache-window-bytes=much", []string{"--watch-cache-window-bytes", "much", "128Mi"}},
		{"--watch-cache-encoding-bytes=-1", []string{"for \"--watch-cache-encoding-bytes\""}},
		{"--watch-cache-freshness-timeout=0", []string{"for \"--watch-cache-freshness-timeout\"", "positive"}},
		{"--watch-cache-storage-timeout=0", []string{"for \"--watch-cache-storage-timeout\"", "positive"}},
		{"--watch-cache-storage-timeout=1ms", []string{"for \"--watch-cache-storage-timeout\"", "at least 1s"}},
		{"--watch-cache-max-fallback-lists=-1", []string{"for \"--watch-cache-max-fallback-lists\""}},
		{"--watch-cache-max-fallback-lists=10001", []string{"for \"--watch-cache-max-fallback-lists\"", "at most 10000"}},
		{"--watch-cache-consistency-check-interval=-1s", []string{"for \"--watch-cache-consistency-check-interval\""}},
		{"--watch-cache-consistency-check-interval=1ms", []string{"for \"--watch-cache-consistency-check-interval\"", "at least 1s"}},
		{"--watch-cache-idle-timeout=1ms", []string{"for \"--watch-cache-idle-timeout\"", "at least 1s"}},
		{"--watch-cache-label-indexes=pods", []string{"--watch-cache-label-indexes", `"pods"`, "RESOURCE[.GROUP]#LABEL"}},
		{"--watch-cache-label-indexes=#app", []string{"--watch-cache-label-indexes", `"#app"`}},
		{"--watch-cache-label-indexes=pods#app,", []string{"--watch-cache-label-indexes", `""`}},
		{"--watch-cache-label-indexes=pods#not a label", []string{"--watch-cache-label-indexes", `"not a label"`, "pods"}},
		{"--watch-cache-label-indexes=pods#app,pods#app", []string{"--watch-cache-label-indexes", `"app"`, "duplicate"}},
		{"--watch-cache-implementation=ours", []string{`"ours" for "--watch-cache-implementation"`, `want "watchcache" or "shipped"`}},
		{"--watch-cache-implementation=Shipped", []string{`"Shipped" for "--watch-cache-implementation"`, `want "watchcache" or "shipped"`}},
		{"--watch-cache-implementation=", []string{`"--watch-cache-implementation"`, `want "watchcache" or "shipped"`}},
		{"--watch-cache-shipped=Devices.fleet.example.com", []string{`--watch-cache-shipped names "Devices.fleet.example.com"`, "lower case"}},
		{"--watch-cache-shipped=pods,deployments.apps/status", []string{`--watch-cache-shipped names "deployments.apps/status"`, "subresource"}},
		{"--watch-cache-shipped=pods,", []string{`--watch-cache-shipped names ""`, "RESOURCE[.GROUP]"}},
		{"--watch-cache-shipped=*", []string{`--watch-cache-shipped names "*"`}},
		{"--watch-cache-shadow=-0.1", []string{"--watch-cache-shadow is -0.1", "from 0 to 1"}},
		{"--watch-cache-shadow=1.01", []string{"--watch-cache-shadow is 1.01", "from 0 to 1"}},
		{"--watch-cache-shadow=NaN", []string{"--watch-cache-shadow is NaN", "from 0 to 1"}},
		{"--watch-cache-shadow=Inf", []string{"--watch-cache-shadow is +Inf", "from 0 to 1"}},
		{"--watch-cache-shadow=1%", []string{`"1%" for "--watch-cache-shadow"`}},
		{"--watch-cache-shipped=pods, nodes", []string{`--watch-cache-shipped names " nodes"`}},
	} {
		options, err := parsed(test.flag)
		wrong := options.Validate()
		if err == nil {
			require.Len(t, wrong, 1, test.flag)
			err = wrong[0]
		}
		for _, word := range test.says {
			require.ErrorContains(t, err, word)
		}
	}
	all := errors.Join((&Options{WindowBytes: -1, LabelIndexes: []string{"#a"}}).Validate()...)
	for _, word := range []string{"Config.WindowBytes is -1", "--watch-cache-label-indexes names \"#a\""} {
		require.ErrorContains(t, all, word)
	}
}

// A field that a program sets before AddFlags is the default of its flag.
func TestFlagDefaultOfAProgram(t *testing.T) {
	options := NewOptions()
	options.MaxFallbackLists, options.EncodingBytes = 50, -1
	set := pflag.NewFlagSet("test", pflag.ContinueOnError)
	options.AddFlags(set)
	require.Equal(t, "50", set.Lookup("watch-cache-max-fallback-lists").DefValue)
	require.Equal(t, "0", set.Lookup("watch-cache-encoding-bytes").DefValue)
	config := configured(t, WithOptions(options))
	require.Equal(t, []any{50, int64(-1)}, []any{config.MaxFallbackLists, config.EncodingBytes})
}

var rewrite = flag.Bool("rewrite", false, "write the table of flags in docs/tuning.md")

// flagFields returns the names of the fields that flags set, by flag.
func flagFields(t *testing.T) map[string]string {
	values := map[string]string{"label-indexes": "pods#app", "implementation": "shipped", "shadow": "0.5", "shipped": "pods",
		"consistent-get-from-storage": "true", "lazy-start": "true"}
	fields := map[string]string{}
	options := NewOptions()
	set := pflag.NewFlagSet("test", pflag.ContinueOnError)
	options.AddFlags(set)
	set.VisitAll(func(f *pflag.Flag) {
		value := values[strings.TrimPrefix(f.Name, "watch-cache-")]
		switch f.Value.Type() {
		case "duration":
			value = "7s"
		case "quantity", "int":
			value = "7"
		}
		before := *options
		require.NoError(t, set.Set(f.Name, value), f.Name)
		for _, field := range reflect.VisibleFields(reflect.TypeFor[Options]()) {
			if reflect.DeepEqual(reflect.ValueOf(before).FieldByIndex(field.Index).Interface(), reflect.ValueOf(*options).FieldByIndex(field.Index).Interface()) {
				continue
			}
			require.Empty(t, fields[f.Name], "--%s sets two fields", f.Name)
			fields[f.Name] = field.Name
			if !slices.Contains(configFields(), field.Name) {
				fields[f.Name] = "Options." + field.Name
			}
		}
	})
	return fields
}

// configFields are the names of the exported fields of cacher.Config.
func configFields() (names []string) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[cacher.Config]()) {
		if field.IsExported() {
			names = append(names, field.Name)
		}
	}
	return names
}

// The table of docs/tuning.md is what --help says. Of every field without a flag the page
// says why.
func TestFlagsPage(t *testing.T) {
	const path, begin, end = "../docs/tuning.md", "| flag | field of `cacher.Config` | default |\n|---|---|---|\n", "\n## Without a flag\n"
	page, err := os.ReadFile(path)
	require.NoError(t, err)
	fields := flagFields(t)
	set := pflag.NewFlagSet("test", pflag.ContinueOnError)
	set.SortFlags = false
	NewOptions().AddFlags(set)
	var table strings.Builder
	set.VisitAll(func(f *pflag.Flag) {
		require.Regexp(t, `\.$`, f.Usage)
		fmt.Fprintf(&table, "| `--%s` | `%s` | %s |\n", f.Name, fields[f.Name], f.DefValue)
	})
	before, rest, ok := strings.Cut(string(page), begin)
	require.True(t, ok)
	written, after, ok := strings.Cut(rest, end)
	require.True(t, ok)
	if *rewrite {
		require.NoError(t, os.WriteFile(path, []byte(before+begin+table.String()+end+after), 0o600))
	} else {
		require.Equal(t, table.String(), written, "go test ./server -run TestFlagsPage -rewrite")
	}
	without, _, _ := strings.Cut(after, "\n## ")
	for _, name := range configFields() {
		flagged := slices.Contains(slices.Collect(maps.Values(fields)), name)
		require.NotEqual(t, flagged, strings.Contains(without, "`"+name+"`"), "Config.%s has either a flag or a reason for having none", name)
	}
}

// docs/tuning.md has a section, or a reason for having none, for each field of
// Config and for nothing else. The flags in its headings are those of its table, and each metric and label that the page names exists.
func TestTuningPage(t *testing.T) {
	text, err := os.ReadFile("../docs/tuning.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(text), "\n## Without a flag\n")
	require.True(t, ok)
	without, _, _ := strings.Cut(rest, "\n## ")

	told := map[string]bool{}
	for _, section := range strings.Split(string(text), "\n### ")[1:] {
		heading, body, _ := strings.Cut(section, "\n")
		name, flag, flagged := strings.Cut(heading, " ")
		require.False(t, told[name], "docs/tuning.md has two sections for %s", name)
		told[name] = true
		row := regexp.MustCompile("(?m)^\\| (`--[a-z-]+`) \\| `" + name + "` \\|").FindStringSubmatch(string(text))
		require.Equal(t, row != nil, flagged, "the heading of %s names its flag, if there is one", name)
		if flagged {
			assert.Equal(t, row[1], flag, "the flag of %s", name)
		}
		for _, part := range []string{"Symptom", "Metric", "Choose"} {
			assert.Equal(t, 1, strings.Count(body, "- **"+part+":** "), "%s in the section of %s", part, name)
		}
	}
	for _, name := range configFields() {
		assert.True(t, told[name] || strings.Contains(without, "`"+name+"`"), "docs/tuning.md has neither a section for Config.%s nor a reason for having none", name)
		delete(told, name)
	}
	assert.Empty(t, told, "sections of docs/tuning.md for options that there are not")

	labels := map[string]bool{}
	known := map[string]bool{}
	for _, metric := range metrics.List() {
		known[string(metric.Name)] = true
		for _, label := range metric.Labels {
			for _, value := range label.Values {
				labels[label.Name+`="`+value+`"`] = true
			}
		}
	}
	labels[`index="`+metrics.ByKeys+`"`] = true
	production, err := os.ReadFile("../docs/production.md")
	require.NoError(t, err)
	for _, name := range regexp.MustCompile(`watchcache_\w+`).FindAllString(string(text)+string(production), -1) {
		assert.True(t, known[name], "docs/tuning.md or docs/production.md names the metric %s, which does not exist", name)
	}
	for _, label := range regexp.MustCompile("`(\\w+=\"\\w+\")`").FindAllStringSubmatch(string(text), -1) {
		assert.True(t, labels[label[1]], "docs/tuning.md names %s, which no metric has", label[1])
	}
}
