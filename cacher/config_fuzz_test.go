// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

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
