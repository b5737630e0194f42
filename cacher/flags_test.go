// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"errors"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-watchcache/watchcache/cacher"
)

// parsed returns options whose flags were parsed.
func parsed(args ...string) (*cacher.Options, error) {
	options := cacher.NewOptions()
	set := pflag.NewFlagSet("test", pflag.ContinueOnError)
	options.AddFlags(set)
	return options, set.Parse(args)
}

// flags is parsed for flags that can be parsed.
func flags(args ...string) *cacher.Options {
	options, err := parsed(args...)
	if err != nil {
		panic(err)
	}
	return options
}

// configured returns the configuration of a cache of widgets.
func configured(t *testing.T, options ...cacher.Option) cacher.Config {
	t.Helper()
	asked := askedFor(nil)
	asked.config.GroupResource = widgets
	got, destroy, err := asked.of(cacher.Decorator(append(options, cacher.WithRawStorage((&rawStores{}).open))...))
	require.NoError(t, err)
	t.Cleanup(destroy)
	return got.(*cacher.Cacher).Config()
}

// Without flags a server has the caches that it has without Options.
func TestFlagDefaults(t *testing.T) {
	require.Empty(t, cacher.NewOptions().Validate())
	plain, flagged := configured(t), configured(t, cacher.WithOptions(flags()))
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
		flag, field string
		want        any
	}{
		{"--watch-cache-window=2m", "EventsHistoryWindow", 2 * time.Minute},
		{"--watch-cache-window=0", "EventsHistoryWindow", cacher.DefaultEventsHistoryWindow},
		{"--watch-cache-window-bytes=1Gi", "WindowBytes", int64(1 << 30)},
		{"--watch-cache-window-bytes=12345", "WindowBytes", int64(12345)},
		{"--watch-cache-window-bytes=1.5Ki", "WindowBytes", int64(1536)},
		{"--watch-cache-window-bytes=1e3", "WindowBytes", int64(1000)},
		{"--watch-cache-encoding-bytes=1Mi", "EncodingBytes", int64(1 << 20)},
		{"--watch-cache-encoding-bytes=0", "EncodingBytes", int64(-1)},
		{"--watch-cache-encoding-percent=40", "EncodingPercent", 40},
		{"--watch-cache-encoding-percent=0", "EncodingPercent", -1},
		{"--watch-cache-initial-events-bytes=2Mi", "InitialEventsBytes", int64(2 << 20)},
		{"--watch-cache-initial-events-bytes=0", "InitialEventsBytes", int64(cacher.DefaultWindowBytes)},
		{"--watch-cache-initial-events-timeout=5s", "InitialEventsTimeout", 5 * time.Second},
		{"--watch-cache-initial-events-timeout=0", "InitialEventsTimeout", time.Duration(-1)},
		{"--watch-cache-parked-timeout=6s", "ParkedTimeout", 6 * time.Second},
		{"--watch-cache-freshness-timeout=7s", "FreshnessTimeout", 7 * time.Second},
		{"--watch-cache-storage-timeout=20s", "StorageTimeout", 20 * time.Second},
		{"--watch-cache-stale-reads=8", "StaleReads", 8},
		{"--watch-cache-stale-reads=0", "StaleReads", -1},
		{"--watch-cache-consistency-check-interval=9s", "ConsistencyCheckInterval", 9 * time.Second},
		{"--watch-cache-consistency-check-interval=0", "ConsistencyCheckInterval", time.Duration(-1)},
		{"--watch-cache-consistent-get-from-storage", "ConsistentGetFromStorage", true},
		{"--watch-cache-lazy-start", "LazyStart", true},
		{"--watch-cache-idle-timeout=10m", "IdleTimeout", 10 * time.Minute},
		{"--watch-cache-share-equal-parts", "ShareEqualParts", true},
		{"--watch-cache-label-indexes=widgets.example.com#a,widgets.example.com#example.com/b,pods#c", "LabelIndexes", []string{"a", "example.com/b"}},
		{"--watch-cache-label-indexes=widgets#a", "LabelIndexes", []string(nil)},
	} {
		options := flags(test.flag)
		require.Empty(t, options.Validate(), test.flag)
		config := configured(t, cacher.WithOptions(options))
		require.Equal(t, test.want, reflect.ValueOf(config).FieldByName(test.field).Interface(), test.flag)
	}
}

// The label indexes of a program are the flag's default; the flag, which may be
// repeated, replaces them.
func TestLabelIndexesFlag(t *testing.T) {
	parse := func(args ...string) map[schema.GroupResource][]string {
		options := cacher.NewOptions()
		options.LabelIndexes = map[schema.GroupResource][]string{widgets: {"site"}}
		set := pflag.NewFlagSet("test", pflag.ContinueOnError)
		options.AddFlags(set)
		require.Equal(t, "widgets.example.com#site", set.Lookup("watch-cache-label-indexes").DefValue)
		require.NoError(t, set.Parse(args))
		require.Contains(t, set.FlagUsages(), "(default widgets.example.com#site)")
		require.Contains(t, set.FlagUsages(), "(default 128Mi)")
		return options.LabelIndexes
	}
	pods := schema.GroupResource{Resource: "pods"}
	require.Equal(t, map[schema.GroupResource][]string{widgets: {"site"}}, parse())
	require.Equal(t, map[schema.GroupResource][]string{widgets: {"a", "b"}, pods: {"app"}},
		parse("--watch-cache-label-indexes=widgets.example.com#a,pods#app", "--watch-cache-label-indexes=widgets.example.com#b"))
	require.Empty(t, parse("--watch-cache-label-indexes="))
}

// An error about a flag names the flag and the value.
func TestFlagsAreRefused(t *testing.T) {
	for _, test := range []struct {
		flag string
		says []string
	}{
		{"--watch-cache-window=-1s", []string{"--watch-cache-window is -1s", "negative"}},
		{"--watch-cache-window=9000h", []string{"--watch-cache-window is 9000h0m0s", "at most 8760h0m0s"}},
		{"--watch-cache-window-bytes=0", []string{"--watch-cache-window-bytes is 0", "positive"}},
		{"--watch-cache-window-bytes=2Ti", []string{"--watch-cache-window-bytes is 2199023255552", "at most"}},
		{"--watch-cache-window-bytes=0.5", []string{"--watch-cache-window-bytes", "0.5", "whole number"}},
		{"--watch-cache-window-bytes=1e30", []string{"--watch-cache-window-bytes", "1e30", "64 bits"}},
		{"--watch-cache-window-bytes=much", []string{"--watch-cache-window-bytes", "much", "128Mi"}},
		{"--watch-cache-encoding-bytes=-1", []string{"--watch-cache-encoding-bytes is -1"}},
		{"--watch-cache-initial-events-bytes=-1Mi", []string{"--watch-cache-initial-events-bytes is -1048576"}},
		{"--watch-cache-initial-events-timeout=-1s", []string{"--watch-cache-initial-events-timeout is -1s"}},
		{"--watch-cache-parked-timeout=1ns", []string{"--watch-cache-parked-timeout is 1ns", "at least 1ms"}},
		{"--watch-cache-parked-timeout=3", []string{"--watch-cache-parked-timeout", "missing unit"}},
		{"--watch-cache-freshness-timeout=0", []string{"--watch-cache-freshness-timeout is 0s", "positive"}},
		{"--watch-cache-storage-timeout=0", []string{"--watch-cache-storage-timeout is 0s", "positive"}},
		{"--watch-cache-storage-timeout=1ms", []string{"--watch-cache-storage-timeout is 1ms", "at least 1s"}},
		{"--watch-cache-stale-reads=-1", []string{"--watch-cache-stale-reads is -1"}},
		{"--watch-cache-stale-reads=10001", []string{"--watch-cache-stale-reads is 10001", "at most 10000"}},
		{"--watch-cache-consistency-check-interval=-1s", []string{"--watch-cache-consistency-check-interval is -1s"}},
		{"--watch-cache-consistency-check-interval=1ms", []string{"--watch-cache-consistency-check-interval is 1ms", "at least 1s"}},
		{"--watch-cache-idle-timeout=1ms", []string{"--watch-cache-idle-timeout is 1ms", "at least 1s"}},
		{"--watch-cache-label-indexes=pods", []string{"--watch-cache-label-indexes", `"pods"`, "RESOURCE[.GROUP]#LABEL"}},
		{"--watch-cache-label-indexes=#app", []string{"--watch-cache-label-indexes", `"#app"`}},
		{"--watch-cache-label-indexes=pods#app,", []string{"--watch-cache-label-indexes", `""`}},
		{"--watch-cache-label-indexes=pods#not a label", []string{"--watch-cache-label-indexes", `"not a label"`, "pods"}},
		{"--watch-cache-label-indexes=pods#app,pods#app", []string{"--watch-cache-label-indexes", `"app"`, "already"}},
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
	all := errors.Join((&cacher.Options{StaleReads: -1, LabelIndexes: map[schema.GroupResource][]string{{}: {"a"}}}).Validate()...)
	for _, word := range []string{"--watch-cache-window-bytes is 0", "--watch-cache-freshness-timeout is 0s", "--watch-cache-stale-reads is -1", "--watch-cache-label-indexes names \"\": the resource is empty"} {
		require.ErrorContains(t, all, word)
	}
}

// docs/flags.md has every flag with its field, and says of every other field why it
// has none.
func TestFlagsPage(t *testing.T) {
	page, err := os.ReadFile("../docs/flags.md")
	require.NoError(t, err)
	flagged, without, ok := strings.Cut(string(page), "\n## Without a flag\n")
	require.True(t, ok)
	rows := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `--([a-z-]+)` \\| `(\\w+)` \\|").FindAllStringSubmatch(flagged, -1) {
		rows[row[1]] = row[2]
	}
	reasons := map[string]bool{}
	for row := range strings.Lines(without) {
		names, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " |")
		for _, name := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(names, -1) {
			reasons[name[1]] = true
		}
	}
	set := pflag.NewFlagSet("test", pflag.ContinueOnError)
	cacher.NewOptions().AddFlags(set)
	set.VisitAll(func(flag *pflag.Flag) {
		require.Contains(t, rows, flag.Name, "docs/flags.md has no row for the flag")
		require.Regexp(t, `\.$`, flag.Usage)
	})
	fields := map[string]bool{}
	for flag, field := range rows {
		require.NotNil(t, set.Lookup(flag), "docs/flags.md has --%s", flag)
		fields[field] = true
	}
	options, config := reflect.TypeFor[cacher.Options](), reflect.TypeFor[cacher.Config]()
	for i := range options.NumField() {
		require.True(t, fields[options.Field(i).Name], "docs/flags.md has no row for Options.%s", options.Field(i).Name)
	}
	for i := range config.NumField() {
		name := config.Field(i).Name
		require.NotEqual(t, fields[name], reasons[name], "Config.%s has either a flag or a reason for having none in docs/flags.md", name)
	}
}
