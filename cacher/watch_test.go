// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"testing"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

func TestWatchFromStateThenEvents(t *testing.T) {
	store := newStore(poddata.Pod("a/one"), poddata.Pod("b/two")) // at 2 and 3
	c := start(t, store)
	w := watchPods(t, c, "/pods/", "0")
	w.expect("ADDED a/one@2", "ADDED b/two@3")
	put(store, poddata.Pod("a/three"))
	put(store, poddata.Pod("a/one", "x=y"))
	store.Remove("/pods/b/two")
	w.expect("ADDED a/three@4", "MODIFIED a/one@5", "DELETED b/two@6")
}
