// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/keptlists"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// encoder counts how often it is asked to encode, and returns what it gets.
type encoder struct {
	calls   atomic.Int64
	padding string
}

func (e *encoder) encode(object runtime.Object, w io.Writer) error {
	e.calls.Add(1)
	pod := object.(*example.Pod)
	_, err := fmt.Fprintf(w, "%s@%s%s", pod.Name, pod.ResourceVersion, e.padding)
	pod.Name = "taken over" // encoders own what they get
	return err
}

// longEncoder makes some 4 KB of each object.
func longEncoder() *encoder { return &encoder{padding: strings.Repeat(".", 4000) + "\n"} }

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
	meters, metric := metered(t)
	c := start(t, store, meters)
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
	assert.EqualValues(t, 2, metric("encodings_total"), "the encodings that were made")
	assert.EqualValues(t, len(watches)-2, metric("encodings_shared_total"), "the encodings that were shared")
	assert.Positive(t, c.Status().EncodingBytes, "the bytes that are counted")
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

// statePods makes n pods.
func statePods(n int) []*example.Pod {
	pods := make([]*example.Pod, n)
	for i := range pods {
		pods[i] = poddata.Pod(fmt.Sprintf("a/pod-%04d", i))
	}
	return pods
}

// stateOf encodes the initial events of a new watch, and ends it.
func stateOf(t *testing.T, c *cacher.Cacher, n int, e *encoder) string {
	w := watchPods(t, c, "/pods/", "0")
	defer w.Stop()
	var out bytes.Buffer
	for range n {
		event := <-w.ResultChan()
		if !assert.Equal(t, watch.Added, event.Type) {
			break
		}
		assert.NoError(t, event.Object.(runtime.CacheableObject).CacheEncode("json", e.encode, &out))
	}
	return out.String()
}

// A state of which not everything can be kept is not encoded again as a whole for
// each watcher: what is kept of it stays, and does not give way to the rest.
func TestInitialEventsOfAStateTwiceTheBudget(t *testing.T) {
	const n, bytesOfOne = 400, 4018
	store := newStore(statePods(n)...)
	c := start(t, store, func(config *cacher.Config) { config.EncodingBytes = n * bytesOfOne / 2 })
	e := longEncoder()
	first := stateOf(t, c, n, e)
	require.EqualValues(t, n, e.calls.Load(), "encodings for the first watcher")
	for range 2 {
		before := e.calls.Load()
		require.Equal(t, first, stateOf(t, c, n, e))
		require.Less(t, e.calls.Load()-before, int64(n)*2/3, "encodings for the next watcher")
		// Once a second, what events hold is taken from the room of lists.
		require.Eventually(t, func() bool { return c.Status().EncodingBytes <= n*bytesOfOne/2 }, time.Minute, 10*time.Millisecond, "bytes of kept events")
	}
}

// Watchers that begin with one state share its serializations, at once and one after
// the other; an object that has changed is encoded again, and no other.
func TestInitialEventsAreEncodedOnce(t *testing.T) {
	const n = 300
	store := newStore(statePods(n)...)
	c := start(t, store)
	e := longEncoder()
	var watchers sync.WaitGroup
	states := make([]string, 8)
	for i := range states {
		watchers.Go(func() { states[i] = stateOf(t, c, n, e) })
	}
	watchers.Wait()
	for _, state := range states {
		require.Equal(t, states[0], state)
	}
	require.EqualValues(t, n, e.calls.Load(), "encodings for watchers at once")
	require.Equal(t, states[0], stateOf(t, c, n, e))
	require.EqualValues(t, n, e.calls.Load(), "and for one more")
	for _, i := range []int{0, 17, 18, n - 1} {
		put(store, poddata.Pod(fmt.Sprintf("a/pod-%04d", i), "changed=true"))
	}
	until(t, "the cache has the changes", func() bool { return c.Status().WindowEvents == 4 })
	changed := stateOf(t, c, n, e)
	require.EqualValues(t, n+4, e.calls.Load(), "encodings after four changes")
	plain := longEncoder()
	require.Equal(t, stateOf(t, start(t, store, func(config *cacher.Config) { config.EncodingBytes = -1 }), n, plain), changed)
	require.EqualValues(t, n, plain.calls.Load())
}

// An encoder that fails or panics in the middle of a run fails for its own watcher
// only, and nothing of it is kept.
func TestInitialEventsAfterAFailedEncoding(t *testing.T) {
	const n = 100
	store := newStore(statePods(n)...)
	c := start(t, store)
	w := watchPods(t, c, "/pods/", "0")
	event := <-w.ResultChan()
	require.Panics(t, func() {
		_ = event.Object.(runtime.CacheableObject).CacheEncode("json", func(runtime.Object, io.Writer) error { panic("in the encoder") }, io.Discard)
	})
	event = <-w.ResultChan()
	err := event.Object.(runtime.CacheableObject).CacheEncode("json", func(runtime.Object, io.Writer) error { return io.ErrUnexpectedEOF }, io.Discard)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	// The watcher after that may be told of the panic, where its own encoder was not
	// called.
	next := watchPods(t, c, "/pods/", "0")
	e, again, plain := longEncoder(), longEncoder(), longEncoder()
	for range n {
		_ = (<-next.ResultChan()).Object.(runtime.CacheableObject).CacheEncode("json", e.encode, io.Discard)
	}
	state := stateOf(t, c, n, e)
	require.EqualValues(t, n, e.calls.Load())
	require.Equal(t, state, stateOf(t, c, n, again))
	require.Zero(t, again.calls.Load())
	require.Equal(t, stateOf(t, start(t, store, func(config *cacher.Config) { config.EncodingBytes = -1 }), n, plain), state)
}

// identifiers returns those that an API server's encoders have for a media type
// and a group and version: of the object, and of the object within a watch event.
func identifiers(t *testing.T, mediaType string, version schema.GroupVersion) []string {
	t.Helper()
	scheme := runtime.NewScheme()
	codecs := serializer.NewCodecFactory(scheme, serializer.WithSerializer(cbor.NewSerializerInfo))
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), mediaType)
	require.True(t, ok, "nothing encodes %s", mediaType)
	serializer := runtime.UseNondeterministicEncoding(info.Serializer)
	whole := string(codecs.EncoderForVersion(serializer, version).Identifier())
	within := func(id string) string {
		text, err := json.Marshal(map[string]string{"name": "watch", "eventType": "ADDED", "embeddedEncoder": id})
		require.NoError(t, err)
		return string(text)
	}
	return []string{string(serializer.Identifier()), whole, within(whole), within(within(whole))}
}

// An object in shuffled CBOR is encoded for each watch that has it from the window
// or from the state, and once for all that have it as it happens. Any other format
// is encoded once for all, even if the object's group is called as CBOR is.
func TestShuffledReplays(t *testing.T) {
	version := schema.GroupVersion{Group: "cbor", Version: "v1"}
	for mediaType, each := range map[string]bool{
		runtime.ContentTypeCBOR: true, runtime.ContentTypeJSON: false, runtime.ContentTypeYAML: false, runtime.ContentTypeProtobuf: false,
	} {
		for _, id := range identifiers(t, mediaType, version) {
			store := newStore(poddata.Pod("a/one", "color=red"))
			c := start(t, store)
			const watches = 5
			var live []*podWatch
			for range watches {
				live = append(live, watchPods(t, c, "/pods/", "2", selecting("color=red", "")))
			}
			allLive(t, c, watches)
			put(store, poddata.Pod("a/one", "color=red", "size=big"))
			var dispatched, initial, modified, left encoder
			for _, w := range live {
				encodeNext(t, w, id, dispatched.encode)
			}
			for range watches {
				encodeNext(t, watchPods(t, c, "/pods/", "0"), id, initial.encode)
			}
			for range watches {
				encodeNext(t, watchPods(t, c, "/pods/", "2"), id, modified.encode)
			}
			put(store, poddata.Pod("a/one", "color=blue"))
			for _, w := range live {
				encodeNext(t, w, id, left.encode)
			}
			for range watches {
				encodeNext(t, watchPods(t, c, "/pods/", "3", selecting("color=red", "")), id, left.encode)
			}
			got := [4]int64{dispatched.calls.Load(), initial.calls.Load(), modified.calls.Load(), left.calls.Load()}
			want := [4]int64{1, 0, 0, 1}
			if each {
				want = [4]int64{1, watches, watches, 1 + watches}
			}
			assert.Equal(t, want, got, "how often %s is encoded as %s: dispatched, initial, replayed, left", version, id)
		}
	}
}

func allLive(t *testing.T, c *cacher.Cacher, watchers int) {
	t.Helper()
	until(t, "all watchers are live", func() bool { return c.Status().Watches.Live == watchers })
}

// Lists keeps what lists were encoded to, for the serializers that it was asked
// for; a cache without it keeps nothing.
func TestLists(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{example.AddToScheme, examplev1.AddToScheme} {
		require.NoError(t, add(scheme))
	}
	scheme.AddKnownTypes(example.SchemeGroupVersion, &example.PodList{})
	scheme.AddKnownTypes(examplev1.SchemeGroupVersion, &examplev1.PodList{})
	stock := serializer.NewCodecFactory(scheme)
	for _, lists := range []*keptlists.Encoder{nil, {}} {
		store := newStore()
		for i := range 40 {
			put(store, poddata.Pod(fmt.Sprintf("a/pod-%d", i)))
		}
		c := start(t, store, func(config *cacher.Config) {
			if config.Lists = lists; lists == nil {
				config.Lists = nil
			}
		})
		var serializer runtime.NegotiatedSerializer = stock
		if lists != nil {
			serializer = lists.Serializer(stock)
			assert.True(t, lists.Serializer(serializer) == serializer, "a serializer is wrapped twice")
		}
		info, _ := runtime.SerializerInfoForMediaType(stock.SupportedMediaTypes(), runtime.ContentTypeJSON)
		for range 3 {
			var list example.PodList
			options := storage.ListOptions{ResourceVersion: "0", Recursive: true, Predicate: storage.Everything}
			ctx := context.Background()
			if lists != nil {
				with, end := lists.Begin(ctx)
				defer end()
				ctx = with
			}
			err := c.GetList(ctx, "/pods/", options, &list)
			require.NoError(t, err)
			require.Len(t, list.Items, 40)
			encoded := func(s runtime.NegotiatedSerializer) string {
				var into bytes.Buffer
				require.NoError(t, s.EncoderForVersion(info.Serializer, examplev1.SchemeGroupVersion).Encode(&list, &into))
				return into.String()
			}
			want, got := encoded(stock), encoded(serializer)
			assert.Equal(t, want, got)
		}
		assert.Equal(t, lists != nil, c.Status().EncodingBytes > 0, "whether bytes are kept, with %v", lists)
	}
}
