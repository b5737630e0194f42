// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"flag"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
)

const (
	// floorShare is the least share of reads, in percent of those that etcd itself
	// answered in the same time, that the server must answer while the cluster has
	// its majority. An election that takes long takes from both. The goal is
	// higher, and the output shows what is reached; this is what even a busy
	// machine leaves.
	floorShare = 75
)

// both has the faults under the shipped cache as well, for the figures.
var both = flag.Bool("shipped", false, "run the faults under the shipped cache as well")

// TestFaults causes each fault once, under our cache, which must pass, and prints what came
// of it.
func TestFaults(t *testing.T) {
	noLeaks(t)
	caches := []string{apiserver.Ours}
	if *both {
		caches = append(caches, apiserver.Shipped)
	}
	for _, cache := range caches {
		t.Run(cache, func(t *testing.T) {
			trial := newTrial(t, cache)
			for _, f := range shortForm() {
				t.Run(f.name, func(t *testing.T) {
					r := trial.run(f)
					fmt.Printf("%s, %s: %v\n", f.name, cache, r)
					if cache == apiserver.Ours {
						check(t, f, r)
					}
				})
			}
		})
	}
}

// check holds our cache to what must be.
func check(t *testing.T, f fault, r row) {
	t.Helper()
	assert.Empty(t, r.violations, f.name)
	assert.Zero(t, r.ends.ended(), "%s: watches ended: %+v %v", f.name, r.ends, r.said)
	if f.members {
		least := r.etcd.share() * floorShare / 100
		assert.GreaterOrEqual(t, r.gets.share(), least, "%s: GETs answered in time, in percent: %v, etcd itself %v", f.name, r.gets, r.etcd)
		assert.GreaterOrEqual(t, r.lists.share(), least, "%s: LISTs answered in time, in percent: %v, etcd itself %v", f.name, r.lists, r.etcd)
	}
}
