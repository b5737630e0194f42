// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// Concurrent readers wait for one call of encode and share its result.
func TestEncodingIsShared(t *testing.T) {
	const readers, elements = 8, 50
	for range elements {
		e := element("a", 1, "1")
		var made [readers][]byte
		var creators, calls int
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range readers {
			wg.Go(func() {
				bytes, created, err := e.Encodings().Get("json", func() ([]byte, error) {
					mu.Lock()
					defer mu.Unlock()
					calls++
					return []byte(fmt.Sprint(i)), nil
				})
				mu.Lock()
				defer mu.Unlock()
				assert.NoError(t, err)
				if created {
					creators++
				}
				made[i] = bytes
			})
		}
		wg.Wait()
		require.Equal(t, 1, calls)
		require.Equal(t, 1, creators)
		for _, bytes := range made {
			require.Same(t, &made[0][0], &bytes[0])
		}
	}
}

func TestDroppedEncodingIsMadeAnew(t *testing.T) {
	encodings := element("a", 1, "1").Encodings()
	get := func(id, text string) (string, bool) {
		bytes, created, err := encodings.Get(id, func() ([]byte, error) { return []byte(text), nil })
		require.NoError(t, err)
		return string(bytes), created
	}
	for _, id := range []string{"a", "b", "c"} {
		get(id, "first")
	}
	encodings.Drop("nowhere")
	encodings.Drop("a")
	encodings.Drop("a")
	for id, want := range map[string]string{"a": "second", "b": "first", "c": "first"} {
		text, created := get(id, "second")
		require.Equal(t, want, text)
		require.Equal(t, want == "second", created)
	}
}

func TestEncodingKeepsItsError(t *testing.T) {
	encodings := element("a", 1, "1").Encodings()
	broken := errors.New("broken")
	_, created, err := encodings.Get("json", func() ([]byte, error) { return nil, broken })
	require.ErrorIs(t, err, broken)
	require.True(t, created)
	_, created, err = encodings.Get("json", func() ([]byte, error) { return []byte("never called"), nil })
	require.ErrorIs(t, err, broken)
	require.False(t, created)
	encodings.Drop("json")
	_, _, err = encodings.Get("json", func() ([]byte, error) { return nil, nil })
	require.NoError(t, err)
}

// A server recovers from panics in its handlers. One in the encoder must not
// leave an empty serialization behind that others are served.
func TestEncodingThatPanicsIsNotServed(t *testing.T) {
	encodings := element("a", 1, "1").Encodings()
	require.Panics(t, func() {
		_, _, _ = encodings.Get("json", func() ([]byte, error) { panic("in the encoder") })
	})
	get := func() (string, error) {
		bytes, _, err := encodings.Get("json", func() ([]byte, error) { return []byte("x"), nil })
		return string(bytes), err
	}
	if text, err := get(); err == nil {
		require.Equal(t, "x", text)
	}
	text, err := get()
	require.NoError(t, err, "it must not stay broken")
	require.Equal(t, "x", text)
}

// Watchers whose selector an event has left share one element: the old state
// with the event's resourceVersion.
func TestLeftIsMadeOnce(t *testing.T) {
	s := watchcache.New(roomy)
	e := apply(t, s, added("a", 1, "1"), modified("a", 2, "2")).Event
	// All are making one when the first is done.
	var left [4]*watchcache.Element
	var making, wg sync.WaitGroup
	making.Add(len(left))
	leave := func(e *watchcache.Event) *watchcache.Element {
		making.Done()
		making.Wait()
		return element(e.Previous.Key, e.RV, e.Previous.Labels["value"])
	}
	for i := range left {
		wg.Go(func() { left[i] = e.DeletedView(leave) })
	}
	wg.Wait()
	for _, l := range left {
		require.Same(t, left[0], l)
	}
	require.Same(t, left[0], e.DeletedView(nil), "and nobody makes another")
	require.Equal(t, "a=1@2", show(left[0]))
	require.Equal(t, "a=1@1", show(e.Previous))
}
