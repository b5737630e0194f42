// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// longEncoder makes some 4 KB of each object, and counts.
type longEncoder struct{ calls atomic.Int64 }

var longPadding = strings.Repeat(".", 4000)

func (e *longEncoder) encode(object runtime.Object, w io.Writer) error {
	e.calls.Add(1)
	pod := object.(*example.Pod)
	_, err := fmt.Fprintf(w, "%s@%s%s\n", pod.Name, pod.ResourceVersion, longPadding)
	pod.Name = "taken over" // encoders own what they get
	return err
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
func stateOf(t *testing.T, c *cacher.Cacher, n int, e *longEncoder) string {
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
	var e longEncoder
	first := stateOf(t, c, n, &e)
	require.EqualValues(t, n, e.calls.Load(), "encodings for the first watcher")
	for range 2 {
		before := e.calls.Load()
		require.Equal(t, first, stateOf(t, c, n, &e))
		require.Less(t, e.calls.Load()-before, int64(n)*2/3, "encodings for the next watcher")
		require.LessOrEqual(t, c.Status().EncodingBytes, int64(n*bytesOfOne/2))
	}
}

// Watchers that begin with one state share its serializations, at once and one after
// the other; an object that has changed is encoded again, and no other.
func TestInitialEventsAreEncodedOnce(t *testing.T) {
	const n = 300
	store := newStore(statePods(n)...)
	c := start(t, store)
	var e longEncoder
	var watchers sync.WaitGroup
	states := make([]string, 8)
	for i := range states {
		watchers.Go(func() { states[i] = stateOf(t, c, n, &e) })
	}
	watchers.Wait()
	for _, state := range states {
		require.Equal(t, states[0], state)
	}
	require.EqualValues(t, n, e.calls.Load(), "encodings for watchers at once")
	require.Equal(t, states[0], stateOf(t, c, n, &e))
	require.EqualValues(t, n, e.calls.Load(), "and for one more")
	for _, i := range []int{0, 17, 18, n - 1} {
		put(store, poddata.Pod(fmt.Sprintf("a/pod-%04d", i), "changed=true"))
	}
	until(t, "the cache has the changes", func() bool { return c.Status().WindowEvents == 4 })
	changed := stateOf(t, c, n, &e)
	require.EqualValues(t, n+4, e.calls.Load(), "encodings after four changes")
	var plain longEncoder
	require.Equal(t, stateOf(t, start(t, store, func(config *cacher.Config) { config.EncodingBytes = -1 }), n, &plain), changed)
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
	var e, again, plain longEncoder
	for range n {
		_ = (<-next.ResultChan()).Object.(runtime.CacheableObject).CacheEncode("json", e.encode, io.Discard)
	}
	state := stateOf(t, c, n, &e)
	require.EqualValues(t, n, e.calls.Load())
	require.Equal(t, state, stateOf(t, c, n, &again))
	require.Zero(t, again.calls.Load())
	require.Equal(t, stateOf(t, start(t, store, func(config *cacher.Config) { config.EncodingBytes = -1 }), n, &plain), state)
}
