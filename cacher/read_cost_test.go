// SPDX-License-Identifier: Apache-2.0

//go:build !race && !invariants

// What is counted here is that of the plain build: the race detector and the
// invariants allocate for themselves.

package cacher_test

import (
	"fmt"
	"testing"

	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// A GET allocates nothing, and a LIST the slice of its items and what does not
// grow with it.
func TestAllocationsOfServedReads(t *testing.T) {
	store := newStore()
	for i := range 1000 {
		put(store, poddata.Pod(fmt.Sprintf("ns%d/pod%03d", i%10, i), fmt.Sprintf("app=%d", i%10)))
	}
	c := start(t, store, withLabels("app"))
	pod, pods := &example.Pod{}, &example.PodList{}
	get := func(rv string) func() {
		return func() {
			if err := c.Get(t.Context(), "/pods/ns3/pod123", storage.GetOptions{ResourceVersion: rv}, pod); err != nil {
				t.Fatal(err)
			}
		}
	}
	list := func(key string, opts storage.ListOptions, want int) func() {
		return func() {
			if err := c.GetList(t.Context(), key, opts, pods); err != nil || len(pods.Items) != want {
				t.Fatal(len(pods.Items), err)
			}
		}
	}
	selected, paged := everything("0"), limited(everything("1001"), 100)
	selected.Predicate = poddata.Predicate("app=3", "")
	for _, tc := range []struct {
		name string
		most float64
		read func()
	}{
		{"GET", 0, get("0")},
		{"GET not older than", 0, get("5")},
		{"LIST", 5, list("/pods/", everything("0"), 1000)},
		// The elements are gathered in a slice that grows.
		{"LIST of a namespace", 15, list("/pods/ns3/", everything("0"), 100)},
		{"LIST by an index", 20, list("/pods/", selected, 100)},
		// And a continue token is made.
		{"a page", 20, list("/pods/", paged, 100)},
	} {
		if n := testing.AllocsPerRun(50, tc.read); n > tc.most {
			t.Errorf("%s: %v allocations, want at most %v", tc.name, n, tc.most)
		} else {
			t.Logf("%s: %v allocations", tc.name, n)
		}
	}
}
