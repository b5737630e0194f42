// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// encoder counts how often it is asked to encode, and returns what it gets.
type encoder struct{ calls atomic.Int64 }

func (e *encoder) encode(object runtime.Object, w io.Writer) error {
	e.calls.Add(1)
	pod := object.(*example.Pod)
	_, err := fmt.Fprintf(w, "%s@%s", pod.Name, pod.ResourceVersion)
	pod.Name = "taken over" // encoders own what they get
	return err
}

func encodeNext(t *testing.T, w *podWatch, id string, encode func(runtime.Object, io.Writer) error) string {
	t.Helper()
	event := <-w.ResultChan()
	var out bytes.Buffer
	assert.NoError(t, event.Object.(runtime.CacheableObject).CacheEncode(runtime.Identifier(id), encode, &out))
	return out.String()
}

// All watchers of an event share one serialization of each format: those that
// are live, those that replay the window, and those that get the object as an
// initial event.
func TestEncodeOnce(t *testing.T) {
	store := newStore()
	c := start(t, store)
	var watches []*podWatch
	for range 20 {
		watches = append(watches, watchPods(t, c, "/pods/", "1"))
	}
	put(store, poddata.Pod("a/one"))
	until(t, "the cache has it", func() bool { return c.Status().Objects == 1 })
	for range 20 {
		watches = append(watches, watchPods(t, c, "/pods/", "1"), watchPods(t, c, "/pods/", "0"))
	}
	var json, proto encoder
	var readers sync.WaitGroup
	for i, w := range watches {
		id, by := "json", &json
		if i%2 == 1 {
			id, by = "proto", &proto
		}
		readers.Go(func() {
			assert.Equal(t, "one@2", encodeNext(t, w, id, by.encode))
		})
	}
	readers.Wait()
	assert.EqualValues(t, 1, json.calls.Load(), "JSON encodings for %d watchers", len(watches))
	assert.EqualValues(t, 1, proto.calls.Load(), "protobuf encodings for %d watchers", len(watches))
	assert.Positive(t, c.Status().EncodingBytes, "the bytes that are counted")
}

// An object that left a selection is encoded once, too.
func TestEncodeLeavingOnce(t *testing.T) {
	store := newStore(poddata.Pod("a/one", "color=red"))
	c := start(t, store)
	var watches []*podWatch
	for range 10 {
		watches = append(watches, watchPods(t, c, "/pods/", "2", selecting("color=red", "")), watchPods(t, c, "/pods/", "2", selecting("color!=blue", "")))
	}
	put(store, poddata.Pod("a/one", "color=blue"))
	var e encoder
	for _, w := range watches {
		assert.Equal(t, "one@3", encodeNext(t, w, "json", e.encode))
	}
	assert.EqualValues(t, 1, e.calls.Load(), "encodings")
}

// The bytes kept stay within their budget, whatever is encoded.
func TestEncodingBudget(t *testing.T) {
	for _, budget := range []int64{-1, 100} {
		store := newStore()
		c := start(t, store, func(config *cacher.Config) { config.EncodingBytes = budget })
		w := watchPods(t, c, "/pods/", "1")
		var e encoder
		for i := range 200 {
			put(store, poddata.Pod(fmt.Sprintf("a/pod-%d", i)))
			encodeNext(t, w, "json", e.encode)
			kept := c.Status().EncodingBytes
			require.LessOrEqual(t, kept, max(0, budget), "the bytes that are kept with a budget of %d", budget)
			require.Equal(t, budget > 0, kept > 0, "%d bytes are kept with a budget of %d", kept, budget)
		}
	}
}

// A failed encoding is not kept.
func TestEncodingFailure(t *testing.T) {
	store := newStore()
	c := start(t, store)
	w, again := watchPods(t, c, "/pods/", "1"), watchPods(t, c, "/pods/", "1")
	put(store, poddata.Pod("a/one"))
	event := <-w.ResultChan()
	failure := errors.New("no encoding")
	fail := func(runtime.Object, io.Writer) error { return failure }
	assert.ErrorIs(t, event.Object.(runtime.CacheableObject).CacheEncode("json", fail, io.Discard), failure)
	var e encoder
	assert.Equal(t, "one@2", encodeNext(t, again, "json", e.encode))
}
