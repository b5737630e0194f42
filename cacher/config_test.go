// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// Everything wrong with a configuration is said at once, each with the name of its field
// and the value that it has. FuzzConfig has the fields with bounds.
func TestConfigRefusesWhatDoesNotFit(t *testing.T) {
	for _, tc := range []struct {
		field  string
		change func(*cacher.Config)
		says   []string
	}{
		{"Storage", func(c *cacher.Config) { c.Storage = nil }, []string{"nil"}},
		{"Versioner", func(c *cacher.Config) { c.Versioner = nil }, []string{"nil"}},
		{"GroupResource", func(c *cacher.Config) { c.GroupResource.Resource = "" }, []string{`""`}},
		{"GroupResource", func(c *cacher.Config) { c.GroupResource = schema.GroupResource{Group: "fleet.example.com"} }, []string{"fleet.example.com"}},
		{"ResourcePrefix", func(c *cacher.Config) { c.ResourcePrefix = "" }, []string{`""`}},
		{"ResourcePrefix", func(c *cacher.Config) { c.ResourcePrefix = "pods/" }, []string{`"pods/"`}},
		{"ResourcePrefix", func(c *cacher.Config) { c.ResourcePrefix = "/" }, []string{`"/"`}},
		{"ResourcePrefix", func(c *cacher.Config) { c.ResourcePrefix = "//" }, []string{`"//"`}},
		{"ResourcePrefix", func(c *cacher.Config) { c.ResourcePrefix = "/a/../pods" }, []string{`"/a/../pods/"`}},
		{"ResourcePrefix", func(c *cacher.Config) { c.ResourcePrefix = "/pods//" }, []string{`"/pods//"`}},
		{"KeyFunc", func(c *cacher.Config) { c.KeyFunc = nil }, []string{"nil"}},
		{"GetAttrsFunc", func(c *cacher.Config) { c.GetAttrsFunc = nil }, []string{"nil"}},
		{"IndexerFuncs", func(c *cacher.Config) { c.IndexerFuncs = storage.IndexerFuncs{"spec.nodeName": nil} }, []string{"spec.nodeName", "nil"}},
		{"Indexers", func(c *cacher.Config) { c.Indexers = &cache.Indexers{"f:spec.nodeName": nil} }, []string{"f:spec.nodeName", "nil"}},
		{"IndexerFuncs", func(c *cacher.Config) {
			c.IndexerFuncs = storage.IndexerFuncs{"": func(runtime.Object) string { return "" }}
		}, []string{`""`, "field"}},
		{"Indexers", func(c *cacher.Config) { c.Indexers = &cache.Indexers{"byNode": byNode} }, []string{`"byNode"`, `"f:FIELD"`}},
		{"Indexers", func(c *cacher.Config) { c.Indexers = &cache.Indexers{"f:": byNode} }, []string{`"f:"`, `"l:LABEL"`}},
		{"NewFunc", func(c *cacher.Config) { c.NewFunc = nil }, []string{"nil"}},
		{"NewFunc", func(c *cacher.Config) { c.NewFunc = func() runtime.Object { return nil } }, []string{"nil"}},
		{"NewFunc", func(c *cacher.Config) { c.NewFunc = func() runtime.Object { return (*example.Pod)(nil) } }, []string{"nil", "*example.Pod"}},
		{"NewFunc", func(c *cacher.Config) { c.NewFunc = func() runtime.Object { return byValue{} } }, []string{"byValue"}},
		{"NewListFunc", func(c *cacher.Config) { c.NewListFunc = nil }, []string{"nil"}},
		{"NewListFunc", func(c *cacher.Config) { c.NewListFunc = func() runtime.Object { return nil } }, []string{"nil"}},
		{"NewListFunc", func(c *cacher.Config) { c.NewListFunc = poddata.New }, []string{"*example.Pod"}},
		{"NewListFunc", func(c *cacher.Config) { c.NewListFunc = func() runtime.Object { return &arrayList{} } }, []string{"arrayList"}},
		{"NewListFunc", func(c *cacher.Config) { c.NewListFunc = func() runtime.Object { return &interfaceList{} } }, []string{"interfaceList"}},
		{"NewListFunc", func(c *cacher.Config) {
			c.NewListFunc = func() runtime.Object { return &metav1.PartialObjectMetadataList{} }
		}, []string{"PartialObjectMetadata", "example.Pod"}},
		{"Codec", func(c *cacher.Config) { c.Codec = brokenCodec{} }, []string{"brokenCodec", "does not encode"}},
		{"LabelIndexes", func(c *cacher.Config) { c.LabelIndexes = []string{"not a label"} }, []string{`"not a label"`}},
		{"LabelIndexes", func(c *cacher.Config) {
			c.LabelIndexes, c.Indexers = []string{"app"}, &cache.Indexers{storage.LabelIndex("app"): byNode}
		}, []string{`"app"`, "already"}},
		{"StorageTimeout", func(c *cacher.Config) { c.StorageTimeout = time.Millisecond }, []string{"1ms", "at least 1s"}},
	} {
		config := podConfig(newStore())
		tc.change(&config)
		c, err := cacher.New(config)
		if err == nil {
			c.Stop()
			assert.Fail(t, fmt.Sprintf("%s %q is taken", tc.field, tc.says))
			continue
		}
		for _, word := range append(tc.says, "cacher.Config."+tc.field) {
			assert.ErrorContains(t, err, word, tc.field)
		}
		assert.Equal(t, 1, strings.Count(err.Error(), "cacher.Config."), "the fields that are named for %s: %v", tc.field, err)
	}
	_, err := cacher.New(cacher.Config{WindowBytes: -1})
	for _, field := range []string{"Storage", "Versioner", "GroupResource", "ResourcePrefix", "KeyFunc", "GetAttrsFunc", "NewFunc", "NewListFunc", "WindowBytes"} {
		assert.Contains(t, fmt.Sprint(err), "cacher.Config."+field+" is ", field)
	}
	config := podConfig(newStore())
	config.IndexerFuncs = storage.IndexerFuncs{"d": nil, "b": nil, "c": nil, "a": nil}
	for range 20 { // someone may compare two logs
		assert.Regexp(t, `(?s)"a".*"b".*"c".*"d"`, config.Validate().Error())
	}
	config = podConfig(newStore())
	config.Codec = nil // as a storage without encoded objects has it
	assert.NoError(t, config.Validate())
	_, err = cacher.New(podConfig(unsized{newStore()}))
	assert.ErrorContains(t, err, "cacher.Config.Storage", "a storage that has an estimator")
	assert.ErrorContains(t, err, "another estimator", "a storage that has an estimator")
}

type brokenCodec struct{}

func (brokenCodec) Encode(runtime.Object, io.Writer) error { return errors.New("can't") }
func (brokenCodec) Identifier() runtime.Identifier         { return "broken" }
func (brokenCodec) Decode([]byte, *schema.GroupVersionKind, runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	return nil, nil, errors.New("can't")
}

// unsized has a size estimator already.
type unsized struct{ *memstore.Store }

func (unsized) EnableResourceSizeEstimation(storage.KeysFunc) error {
	return errors.New("there is another estimator")
}

// shownBy names, for each field of Config, a test that shows what the field does.
var shownBy = map[string]string{
	"Storage":                  "TestScripts/reads",
	"Versioner":                "TestNothingOfObjectsLeaves",
	"GroupResource":            "TestShippedSeriesBesideTheShippedCacher",
	"EventsHistoryWindow":      "TestWatchesThatResumeBeyondTheWindow",
	"ResourcePrefix":           "TestKeyOutsideThePrefix",
	"KeyFunc":                  "TestNamespaceIsNotInTheKey",
	"GetAttrsFunc":             "TestScripts/relist",
	"IndexerFuncs":             "TestWatchesThatResumeBeyondTheWindow",
	"Indexers":                 "TestListLooksAtMatchesOnly",
	"LabelIndexes":             "TestListLooksAtMatchesOnly",
	"AdaptiveIndexes":          "TestAdaptiveIndexes",
	"AdaptivePercent":          "TestAdaptiveIndexes",
	"NewFunc":                  "TestUnstructuredTopLevelIsTheCallers",
	"NewListFunc":              "TestOtherUnstructuredIsPrivate",
	"Codec":                    "TestConfigRefusesWhatDoesNotFit",
	"WatchProgress":            "TestProgressSupportChanges",
	"WindowBytes":              "TestWindowBytesBoundsWhatEventsTake",
	"BookmarkInterval":         "TestScripts/bookmarks",
	"FreshnessTimeout":         "TestScripts/consistency",
	"StorageTimeout":           "TestStorageTimeout",
	"MaxFallbackLists":         "TestScripts/consistency",
	"ConsistentGetFromStorage": "TestScripts/consistency",
	"ConsistencyCheckInterval": "TestConsistencyCheckFindsDifferences",
	"WatchBuffer":              "TestScripts/doubt",
	"DispatchBudget":           "TestWindowHasACeiling",
	"EncodingBytes":            "TestEncodingBudget",
	"Lists":                    "TestLists",
	"Metrics":                  "TestMetricsOfTheState",
	"Clock":                    "TestBookmarksWhenTheClockIsSet",
	"LazyStart":                "TestScripts/lifecycle",
	"IdleTimeout":              "TestScripts/lifecycle",
	"DisableSizeEstimation":    "TestDisableSizeEstimation",
}

// Every field of the configuration has an effect, which a test shows.
func TestEveryFieldHasAnEffect(t *testing.T) {
	tests := testNames(t)
	fields := configFields()
	assert.LessOrEqual(t, len(fields), 32, "the fields of Config")
	assert.ElementsMatch(t, fields, slices.Collect(maps.Keys(shownBy)), "no test shows what the field does, or there is no such field")
	for name, by := range shownBy {
		test, script, scripted := strings.Cut(by, "/")
		assert.True(t, tests[test], "%s: there is no %s", name, by)
		if scripted {
			assert.FileExists(t, "testdata/"+script+".txt", name)
		}
	}
}

// configFields are the names of Config's exported fields.
func configFields() (names []string) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[cacher.Config]()) {
		if field.IsExported() {
			names = append(names, field.Name)
		}
	}
	return names
}

// testNames are the tests of this package.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	require.NotEmpty(t, files, "the tests' source is not here")
	names := map[string]bool{}
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, match := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(source, -1) {
			names[string(match[1])] = true
		}
	}
	return names
}

// sized remembers what it is to estimate sizes by.
type sized struct {
	*memstore.Store
	keys storage.KeysFunc
}

func (s *sized) EnableResourceSizeEstimation(keys storage.KeysFunc) error { s.keys = keys; return nil }

// Storage's size estimator is told the cache's keys, as fresh as a consistent
// read; or nothing.
func TestDisableSizeEstimation(t *testing.T) {
	for _, disabled := range []bool{false, true} {
		store := &sized{Store: newStore(poddata.Pod("b/one"), poddata.Pod("a/one"))}
		start(t, store, func(c *cacher.Config) { c.DisableSizeEstimation = disabled })
		assert.Equal(t, disabled, store.keys == nil, "whether storage was told nothing")
		if disabled {
			continue
		}
		put(store.Store, poddata.Pod("c/one"))
		keys, err := store.keys(testContext(t))
		require.NoError(t, err)
		assert.Equal(t, "/pods/a/one /pods/b/one /pods/c/one", strings.Join(keys, " "))
	}
}

// REGRESSIONS 198: storage's size estimator logs each failure, once a minute for each
// resource. A call that storage's outage delays returns once storage answers again.
func TestSizesWaitForStorage(t *testing.T) {
	store := &sized{Store: newStore(poddata.Pod("a/one"))}
	start(t, store)
	before := store.Requests()["version"]
	store.Fail("version", errors.New("away"))
	returned := make(chan error, 1)
	go func() {
		_, err := store.keys(testContext(t))
		returned <- err
	}()
	require.NoError(t, store.AwaitRequests(testContext(t), "version", before+1))
	store.Fail("version", nil)
	require.NoError(t, <-returned)
}

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
	"a label twice":         {[]cacher.Option{labelIndexes("app", "app")}, []string{`LabelIndexes is "app"`, "duplicate"}},
	"no resource to set":    {[]cacher.Option{cacher.ForResource(schema.GroupResource{}, func(*cacher.Config) {})}, []string{"ForResource", "empty"}},
	"nothing to set":        {[]cacher.Option{cacher.ForResource(widgets, nil)}, []string{`ForResource("widgets.example.com")`, "nil"}},
	"a window of one":       {[]cacher.Option{cacher.ForResource(widgets, func(c *cacher.Config) { c.WindowBytes = -1 })}, []string{`ForResource("widgets.example.com")`, "WindowBytes is -1"}},
	"one that is not there": {[]cacher.Option{cacher.ForResource(widgets, func(*cacher.Config) {}), cacher.Except(widgets)}, []string{`ForResource("widgets.example.com")`, "uncached"}},
	"only nothing":          {[]cacher.Option{cacher.Only()}, []string{"Only names no resource"}},
	"except nothing":        {[]cacher.Option{cacher.Except()}, []string{"Except names no resource"}},
	"an empty resource":     {[]cacher.Option{cacher.Only(schema.GroupResource{Group: "g"})}, []string{"Only", "empty"}},
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
				options = append([]cacher.Option{cacher.WithRawStorage(decoration.AsRaw(raw.open))}, options...)
			}
			_, err := cacher.Select(options...)
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
	_, err := cacher.Select(windowBytes(-1), nil, cacher.Only(), cacher.WithRawStorage(nil), cacher.Configure(func(c *cacher.Config) { c.IdleTimeout = -1 }))
	for _, word := range []string{"WindowBytes is -1", "Option 2 of 5", "Only names no", "WithRawStorage", "IdleTimeout is -1ns"} {
		require.ErrorContains(t, err, word)
	}
}

// Of two options for one thing the later one counts, and settings of one resource count
// more than those of all.
func TestForResource(t *testing.T) {
	first, raw := &rawStores{}, &rawStores{}
	decorator := cacher.Decorator(
		cacher.WithRawStorage(decoration.AsRaw(first.open)),
		cacher.Configure(func(c *cacher.Config) { c.WindowBytes, c.MaxFallbackLists = 1, 31 }),
		cacher.ForResource(widgets, func(c *cacher.Config) { c.WindowBytes, c.LabelIndexes, c.WatchBuffer = 11, []string{"a"}, 13 }),
		cacher.ForResource(widgets, func(c *cacher.Config) { c.WatchBuffer = 12 }),
		cacher.WithRawStorage(decoration.AsRaw(raw.open)),
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
	_, err := cacher.Select(windowBytes(-1), cacher.ForResource(widgets, func(c *cacher.Config) { c.MaxFallbackLists = 3 }))
	require.EqualError(t, err, "cacher.Config.WindowBytes is -1: it must not be negative")
}

// The values that the fuzzer chooses from, by the type of the field: those beside
// a limit, the largest and the smallest, and what somebody may well want.
var (
	fuzzTimes = []time.Duration{0, -1, 1, time.Microsecond, time.Millisecond - 1, time.Millisecond, time.Second - 1, time.Second, 75 * time.Second,
		time.Hour, 8760 * time.Hour, 8760*time.Hour + 1, math.MaxInt64 / 2, math.MaxInt64 - 1, math.MaxInt64, math.MinInt64}
	fuzzBytes  = []int64{0, -1, 1, 100, 1 << 20, 1 << 40, 1<<40 + 1, math.MaxInt64 / 2, math.MaxInt64 - 1, math.MaxInt64, math.MinInt64}
	fuzzCounts = []int{0, -1, 1, 10_000, 10_001, 1 << 16, 1<<16 + 1, math.MaxInt, math.MinInt}
	fuzzFlags  = []bool{false, true}
	fuzzNames  = [][]string{nil, {}, {"app"}, {"app", "example.com/tier"}, {"app", "app"}, {""}, {"a/b/c"}}
)

// fuzzed are the fields that the fuzzer sets: all but those that say what the
// resource is, in the order of Config.
func fuzzed() (fields []int) {
	config := reflect.TypeFor[cacher.Config]()
	for i := range config.NumField() {
		if config.Field(i).IsExported() && choices(reflect.New(config).Elem().Field(i)) != nil {
			fields = append(fields, i)
		}
	}
	return fields
}

// choices returns the values of a field, as a slice; nil for one that the fuzzer
// leaves alone.
func choices(field reflect.Value) any {
	switch field.Interface().(type) {
	case time.Duration:
		return fuzzTimes
	case int64:
		return fuzzBytes
	case int:
		return fuzzCounts
	case bool:
		return fuzzFlags
	case []string:
		return fuzzNames
	}
	return nil
}

// FuzzConfig: a configuration that is taken serves a LIST, a GET and a watch; of
// one that is refused each wrong field is named with its value. The bytes choose
// the values of the fields, in order.
func FuzzConfig(f *testing.F) {
	fields := fuzzed()
	for at, field := range fields { // each value alone, also without -fuzz
		values := reflect.ValueOf(choices(reflect.New(reflect.TypeFor[cacher.Config]()).Elem().Field(field)))
		for value := range values.Len() {
			data := make([]byte, at+1)
			data[at] = byte(value)
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		synctest.Test(t, func(t *testing.T) {
			store := newStore(poddata.Pod("a/one"))
			config := podConfig(store)
			in := fuzzInput(data)
			for _, i := range fields {
				field := reflect.ValueOf(&config).Elem().Field(i)
				values := reflect.ValueOf(choices(field))
				field.Set(values.Index(in.choose(values.Len())))
			}
			invalid := config.Validate()
			c, err := cacher.New(config)
			if invalid != nil {
				require.EqualError(t, err, invalid.Error())
				expectNamed(t, config, invalid)
				return
			}
			require.NoError(t, err)
			defer c.Stop()
			require.NoError(t, c.Wait(testContext(t)))
			expectList(t, c, "/pods/", "0", "a/one@2")
			expectList(t, c, "/pods/", "", "a/one@2")
			expectGetsServed(t, c, 1)
			w := watchPods(t, c, "/pods/", "0")
			require.Equal(t, []string{"ADDED a/one@2"}, received(w))
			for rv := 3; rv < 5; rv++ {
				elapse(3 * time.Second) // whatever happens once a second has happened
				put(store, poddata.Pod("a/one"))
				require.Equal(t, []string{fmt.Sprintf("MODIFIED a/one@%d", rv)}, received(w))
				expectList(t, c, "/pods/", "", fmt.Sprintf("a/one@%d", rv))
			}
		})
	})
}

// expectNamed expects one line for each wrong field, with the field's value.
func expectNamed(t *testing.T, config cacher.Config, err error) {
	t.Helper()
	for said := range strings.SplitSeq(err.Error(), "\n") {
		name, rest, ok := strings.Cut(strings.TrimPrefix(said, "cacher.Config."), " is ")
		require.True(t, ok, said)
		at := slices.IndexFunc(reflect.VisibleFields(reflect.TypeFor[cacher.Config]()), func(f reflect.StructField) bool { return f.Name == name })
		require.GreaterOrEqual(t, at, 0, said)
		field := reflect.ValueOf(config).Field(at)
		values := []string{fmt.Sprint(field)}
		if labels, ok := field.Interface().([]string); ok {
			values = nil
			for _, label := range labels {
				values = append(values, fmt.Sprintf("%q", label))
			}
		}
		named := false
		for _, value := range values {
			named = named || strings.HasPrefix(rest, value+": ")
		}
		require.True(t, named, said)
	}
}
