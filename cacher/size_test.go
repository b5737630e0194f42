// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// Regression 110: WindowBytes bounds what the window keeps in memory, also of
// types that have no serialization to ask for their size, as internal ones:
// the Pods of this test are of such a type.
func TestWindowBytesBoundsWhatEventsTake(t *testing.T) {
	const (
		size    = 200_000
		bound   = 4 << 20
		patches = 300
	)
	store := newStore(poddata.Pod("ns/large"))
	c := start(t, store, func(c *cacher.Config) { c.WindowBytes = bound })
	w := watchPods(t, c, "/pods/", "0")
	w.next()
	for i := range patches {
		pod := poddata.Pod("ns/large")
		pod.Annotations = map[string]string{fmt.Sprint("patch-", i): strings.Repeat("x", size)}
		put(store, pod)
		w.next() // so that the event is dispatched, and may leave the window
	}
	until(t, "the window is within its bound", func() bool { return c.Status().WindowBytes <= bound })
	status := c.Status()
	assert.LessOrEqual(t, status.WindowEvents*size, bound, "the window has %d events with %d bytes each", status.WindowEvents, size)
	assert.NotZero(t, status.WindowEvents, "the window has no events")
	assert.GreaterOrEqual(t, status.ObjectBytes, int64(size), "the cached object is said to take %d bytes; one string of it takes %d", status.ObjectBytes, size)
}
