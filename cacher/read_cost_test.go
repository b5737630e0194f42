// SPDX-License-Identifier: Apache-2.0

//go:build !race && !invariants

// These tests count allocations of the plain build: the race detector and the
// invariants allocate for themselves.

package cacher_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
			// An assertion that holds allocates as well.
			if err := c.Get(t.Context(), "/pods/ns3/pod123", storage.GetOptions{ResourceVersion: rv}, pod); err != nil {
				require.NoError(t, err)
			}
		}
	}
	list := func(key string, opts storage.ListOptions, want int) func() {
		return func() {
			if err := c.GetList(t.Context(), key, opts, pods); err != nil || len(pods.Items) != want {
				require.NoError(t, err)
				require.Len(t, pods.Items, want)
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
		for range 50 { // a histogram makes a bucket when it first counts there
			tc.read()
		}
		n := testing.AllocsPerRun(200, tc.read)
		if assert.LessOrEqual(t, n, tc.most, "%s: the allocations", tc.name) {
			t.Logf("%s: %v allocations", tc.name, n)
		}
	}
}
