// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// Everything wrong with a configuration is said at once, each with the name of
// its field and the value that it has.
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
		{"EventsHistoryWindow", func(c *cacher.Config) { c.EventsHistoryWindow = -time.Second }, []string{"-1s"}},
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
		{"LabelIndexes", func(c *cacher.Config) { c.LabelIndexes = []string{""} }, []string{`""`}},
		{"LabelIndexes", func(c *cacher.Config) { c.LabelIndexes = []string{"app", "app"} }, []string{`"app"`, "already"}},
		{"LabelIndexes", func(c *cacher.Config) {
			c.LabelIndexes, c.Indexers = []string{"app"}, &cache.Indexers{storage.LabelIndex("app"): byNode}
		}, []string{`"app"`, "already"}},
		{"WindowBytes", func(c *cacher.Config) { c.WindowBytes = -1 }, []string{"-1"}},
		{"BookmarkInterval", func(c *cacher.Config) { c.BookmarkInterval = -time.Minute }, []string{"-1m0s"}},
		{"FreshnessTimeout", func(c *cacher.Config) { c.FreshnessTimeout = -time.Millisecond }, []string{"-1ms"}},
		{"StorageTimeout", func(c *cacher.Config) { c.StorageTimeout = -time.Second }, []string{"-1s"}},
		{"StorageTimeout", func(c *cacher.Config) { c.StorageTimeout = time.Millisecond }, []string{"1ms", "at least 1s"}},
		{"WatchBuffer", func(c *cacher.Config) { c.WatchBuffer = -5 }, []string{"-5"}},
		{"WatchBuffer", func(c *cacher.Config) { c.WatchBuffer = 1 << 40 }, []string{"1099511627776", "65536"}},
		{"ConsistencyCheckInterval", func(c *cacher.Config) { c.ConsistencyCheckInterval = time.Second - 1 }, []string{"999.999999ms", "1s"}},
		{"ConsistencyCheckInterval", func(c *cacher.Config) { c.ConsistencyCheckInterval = 1 }, []string{"1ns", "1s"}},
		{"IdleTimeout", func(c *cacher.Config) { c.IdleTimeout = 100 * time.Millisecond }, []string{"100ms", "1s"}},
		{"IdleTimeout", func(c *cacher.Config) { c.IdleTimeout = -1 }, []string{"-1ns"}},
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
		n := strings.Count(err.Error(), "cacher.Config.")
		assert.Equal(t, 1, n, "%s: %d fields are named: %v", tc.field, n, err)
	}
	_, err := cacher.New(cacher.Config{WindowBytes: -1})
	for _, field := range []string{"Storage", "Versioner", "GroupResource", "ResourcePrefix", "KeyFunc", "GetAttrsFunc", "NewFunc", "NewListFunc", "WindowBytes"} {
		assert.Contains(t, fmt.Sprint(err), "cacher.Config."+field+" is ", field)
	}
	config := podConfig(newStore())
	config.Codec = nil // as a storage without encoded objects has it
	assert.NoError(t, config.Validate())
	_, err = cacher.New(podConfig(unsized{newStore()}))
	assert.ErrorContains(t, err, "cacher.Config.Storage", "a storage that has an estimator")
	assert.ErrorContains(t, err, "another estimator", "a storage that has an estimator")
}

// The same mistakes give the same text each time: someone may compare two logs.
func TestConfigProblemsComeInOrder(t *testing.T) {
	config := podConfig(newStore())
	config.EventsHistoryWindow, config.BookmarkInterval, config.FreshnessTimeout, config.IdleTimeout = -1, -2, -3, -4
	config.IndexerFuncs = storage.IndexerFuncs{"d": nil, "b": nil, "c": nil, "a": nil}
	config.Indexers = &cache.Indexers{"f:b": nil, "f:a": nil, "f:d": nil, "f:c": nil}
	want := config.Validate().Error()
	var fields []string
	for line := range strings.Lines(want) {
		field, _, _ := strings.Cut(strings.TrimPrefix(line, "cacher.Config."), ":")
		fields = append(fields, field)
	}
	require.Equal(t, []string{
		"EventsHistoryWindow is -1ns", "FreshnessTimeout is -3ns", "IdleTimeout is -4ns", "BookmarkInterval is -2ns",
		`IndexerFuncs is "a"`, `IndexerFuncs is "b"`, `IndexerFuncs is "c"`, `IndexerFuncs is "d"`,
		`Indexers is "f`, `Indexers is "f`, `Indexers is "f`, `Indexers is "f`,
	}, fields)
	for range 20 {
		require.Equal(t, want, config.Validate().Error())
	}
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

// fieldEffect shows what a field does: what is observed with the one value and
// with the other.
type fieldEffect struct {
	// by names the test that shows it, if it takes one of its own.
	by string
	// change sets the field to its first (0) or second (1) value.
	change func(c *cacher.Config, value int)
	// observe runs in a bubble, on a cache that is ready.
	observe func(t *testing.T, store *memstore.Store, c *cacher.Cacher) string
	want    [2]string
}

func choose[T any](value int, from ...T) T { return from[value] }

var fieldEffects = map[string]fieldEffect{
	"Storage":                  {by: "TestGet"},
	"Indexers":                 {by: "TestListLooksAtMatchesOnly"},
	"AdaptiveIndexes":          {by: "TestAdaptiveIndexes"},
	"AdaptivePercent":          {by: "TestAdaptiveIndexes"},
	"LabelIndexes":             {by: "TestListLooksAtMatchesOnly"},
	"Codec":                    {by: "TestConfigRefusesWhatDoesNotFit"},
	"WatchProgress":            {by: "TestProgressSupportChanges"},
	"BookmarkInterval":         {by: "TestScripts/bookmarks"},
	"FreshnessTimeout":         {by: "TestScripts/consistency"},
	"StorageTimeout":           {by: "TestStorageTimeout"},
	"MaxFallbackLists":         {by: "TestStaleCacheShieldsStorage"},
	"ConsistentGetFromStorage": {by: "TestScripts/consistency"},
	"ConsistencyCheckInterval": {by: "TestConsistencyCheckFindsDifferences"},
	"Metrics":                  {by: "TestMetricsOfTheState"},
	"Clock":                    {by: "TestClock"},
	"NewListFunc":              {by: "TestNewListFunc"},
	"LazyStart":                {by: "TestScripts/lifecycle"},
	"IdleTimeout":              {by: "TestScripts/lifecycle"},
	"DisableSizeEstimation":    {by: "TestDisableSizeEstimation"},
	"Versioner": {
		change:  func(c *cacher.Config, value int) { c.Versioner = shifted{uint64(value)} },
		observe: func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) string { return oneLine(t, c, "/pods/") },
		want:    [2]string{"a/one@2", "a/one@3"},
	},
	"GroupResource": {
		change: func(c *cacher.Config, value int) {
			c.GroupResource = schema.GroupResource{Group: choose(value, "", "fleet.example.com"), Resource: "pods"}
		},
		observe: func(_ *testing.T, _ *memstore.Store, c *cacher.Cacher) string { return c.Status().Resource },
		want:    [2]string{"pods", "pods.fleet.example.com"},
	},
	"EventsHistoryWindow": {
		change: func(c *cacher.Config, value int) { c.EventsHistoryWindow = choose(value, time.Minute, time.Hour) },
		observe: func(t *testing.T, store *memstore.Store, c *cacher.Cacher) string {
			history(t, store, c)
			elapse(10 * time.Minute)
			return fromStorage(t, store, c, "10")
		},
		want: [2]string{"asked of storage", "served from the cache"},
	},
	"WindowBytes": {
		change: func(c *cacher.Config, value int) { c.WindowBytes = choose(value, int64(1000), 1<<30) },
		observe: func(t *testing.T, store *memstore.Store, c *cacher.Cacher) string {
			history(t, store, c)
			elapse(time.Second)
			return fromStorage(t, store, c, "10")
		},
		want: [2]string{"asked of storage", "served from the cache"},
	},
	"ResourcePrefix": {
		change: func(c *cacher.Config, value int) { c.ResourcePrefix = choose(value, "/pods", "/pods/a") },
		observe: func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) string {
			return errorClass(c.GetList(t.Context(), "/pods/b/", everything("0"), &example.PodList{}))
		},
		want: [2]string{"none", "bad key"},
	},
	"KeyFunc": {
		change: func(c *cacher.Config, value int) {
			c.KeyFunc = func(obj runtime.Object) (string, error) {
				key, err := poddata.Key(obj)
				return key + choose(value, "", "-moved"), err
			}
		},
		observe: func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) string {
			return errorClass(c.Get(t.Context(), "/pods/a/one-moved", storage.GetOptions{ResourceVersion: "0"}, &example.Pod{}))
		},
		want: [2]string{"not found", "none"},
	},
	"GetAttrsFunc": {
		change: func(c *cacher.Config, value int) {
			c.GetAttrsFunc = func(runtime.Object) (labels.Set, fields.Set, error) {
				return labels.Set{"made": choose(value, "up", "down")}, nil, nil
			}
		},
		observe: func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) string {
			return oneLine(t, c, "/pods/", selecting("made=up", ""))
		},
		want: [2]string{"a/one@2", "@2"},
	},
	"IndexerFuncs": {
		change: func(c *cacher.Config, value int) {
			c.IndexerFuncs = choose(value, nil, storage.IndexerFuncs{"spec.nodeName": func(runtime.Object) string { return "nowhere" }})
		},
		observe: func(t *testing.T, store *memstore.Store, c *cacher.Cacher) string {
			w := watchPods(t, c, "/pods/", "2", selecting("", "spec.nodeName=n1"))
			synctest.Wait()
			put(store, poddata.Pod("a/two", "spec.nodeName=n1"))
			return strings.Join(received(w), " ")
		},
		want: [2]string{"ADDED a/two@3", ""}, // looked up by what the function says
	},
	"NewFunc": {
		change: func(c *cacher.Config, value int) {
			c.NewFunc = func() runtime.Object {
				return &example.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: choose(value, "", "made")}}
			}
		},
		observe: func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) string {
			w := watchPods(t, c, "/pods/", "2", withBookmarks)
			elapse(2 * cacher.DefaultBookmarkInterval)
			return metaOf(t, (<-w.ResultChan()).Object).GetGenerateName()
		},
		want: [2]string{"", "made"},
	},
	"DispatchBudget": {
		change: func(c *cacher.Config, value int) {
			c.WatchBuffer, c.DispatchBudget = 1, choose(value, -1, 500*time.Millisecond)
		},
		observe: func(t *testing.T, store *memstore.Store, c *cacher.Cacher) string {
			watchPods(t, c, "/pods/", "2") // and does not read
			elapse(10 * time.Second)
			for range 3 {
				put(store, poddata.Pod("a/one"))
			}
			elapse(100 * time.Millisecond)
			return fmt.Sprint("parked: ", c.Status().Watchers[0].Parked)
		},
		want: [2]string{"parked: true", "parked: false"},
	},
	"WatchBuffer": {
		change: func(c *cacher.Config, value int) { c.WatchBuffer = choose(value, 3, 70) },
		observe: func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) string {
			return fmt.Sprint(cap(watchPods(t, c, "/pods/", "2").ResultChan()))
		},
		want: [2]string{"3", "70"},
	},
	"Lists": {by: "TestLists"},
	"EncodingBytes": {
		change:  func(c *cacher.Config, value int) { c.EncodingBytes = choose(value, int64(-1), 1000) },
		observe: encodings,
		want:    [2]string{"2", "1"},
	},
}

// encodings returns how often an event is encoded for two watches.
func encodings(t *testing.T, store *memstore.Store, c *cacher.Cacher) string {
	watches := []*podWatch{watchPods(t, c, "/pods/", "2"), watchPods(t, c, "/pods/", "2")}
	put(store, poddata.Pod("a/one"))
	encoded := 0
	for _, w := range watches {
		event := <-w.ResultChan()
		assert.NoError(t, event.Object.(runtime.CacheableObject).CacheEncode("id", func(_ runtime.Object, w io.Writer) error {
			encoded++
			_, err := io.WriteString(w, "encoded")
			return err
		}, io.Discard))
	}
	return fmt.Sprint(encoded)
}

// history makes more events than are kept whatever their age and size.
func history(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
	t.Helper()
	for range 300 {
		put(store, poddata.Pod("a/one"))
		synctest.Wait()
	}
	expectFresh(t, c)
}

// fromStorage tells where an exact LIST is answered from.
func fromStorage(t *testing.T, store *memstore.Store, c *cacher.Cacher, rv string) string {
	t.Helper()
	before := store.Requests()["list"]
	expectList(t, c, "/pods/", rv, "a/one@"+rv, exactly)
	if store.Requests()["list"] > before {
		return "asked of storage"
	}
	return "served from the cache"
}

func oneLine(t *testing.T, c *cacher.Cacher, key string, change ...func(*storage.ListOptions)) string {
	t.Helper()
	line, _ := list(t, c, key, "0", change...)
	return line
}

// shifted adds to the versions of lists.
type shifted struct{ by uint64 }

func (s shifted) UpdateList(obj runtime.Object, rv uint64, token string, count *int64) error {
	return storage.APIObjectVersioner{}.UpdateList(obj, rv+s.by, token, count)
}
func (shifted) UpdateObject(obj runtime.Object, rv uint64) error {
	return storage.APIObjectVersioner{}.UpdateObject(obj, rv)
}
func (shifted) PrepareObjectForStorage(obj runtime.Object) error {
	return storage.APIObjectVersioner{}.PrepareObjectForStorage(obj)
}
func (shifted) ObjectResourceVersion(obj runtime.Object) (uint64, error) {
	return storage.APIObjectVersioner{}.ObjectResourceVersion(obj)
}
func (shifted) ParseResourceVersion(rv string) (uint64, error) {
	return storage.APIObjectVersioner{}.ParseResourceVersion(rv)
}

// Every field of the configuration has an effect, which a test shows.
func TestEveryFieldHasAnEffect(t *testing.T) {
	tests := testNames(t)
	fields := configFields()
	assert.LessOrEqual(t, len(fields), 32, "the fields of Config")
	for _, name := range fields {
		assert.Contains(t, fieldEffects, name, "no test shows what the field does")
	}
	for _, name := range slices.Sorted(maps.Keys(fieldEffects)) {
		effect := fieldEffects[name]
		assert.Contains(t, fields, name, "there is no such field")
		if effect.by != "" {
			test, script, scripted := strings.Cut(effect.by, "/")
			assert.True(t, tests[test], "%s: there is no %s", name, effect.by)
			if scripted {
				assert.FileExists(t, "testdata/"+script+".txt", name)
			}
			continue
		}
		t.Run(name, func(t *testing.T) {
			for value, want := range effect.want {
				inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
					assert.Equal(t, want, effect.observe(t, store, c), "with value %d", value)
				}, func(c *cacher.Config) { effect.change(c, value) })
			}
		})
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

// Time is taken from the configured clock.
func TestClock(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	c := start(t, newStore(poddata.Pod("a/one")), func(c *cacher.Config) { c.Clock = clock })
	r := goList(testContext(t), c, "100")
	for r.under() { // a step before the read has begun to wait is lost on it
		clock.Step(cacher.DefaultFreshnessTimeout)
		select {
		case <-r.done:
		case <-time.After(time.Millisecond):
		}
	}
	assert.True(t, storage.IsTooLargeResourceVersion(r.err), "got %v", r.err)
}

// unstreamed can't begin a watch with the initial state: it is listed.
type unstreamed struct{ *memstore.Store }

func (unstreamed) IsWatchListSemanticsUnSupported() bool { return true }

func TestNewListFunc(t *testing.T) {
	var made atomic.Int32
	store := newStore(poddata.Pod("a/one"))
	c := start(t, unstreamed{store}, func(c *cacher.Config) {
		c.NewListFunc = func() runtime.Object { made.Add(1); return poddata.NewList() }
	})
	assert.GreaterOrEqual(t, made.Load(), int32(2), "the lists that were made; one is for validation")
	assert.Equal(t, 1, store.Requests()["list"], "the requests")
	expectList(t, c, "/pods/", "0", "a/one@2")
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
