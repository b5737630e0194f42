// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// mark says when a fault began and ended, on the run's clock.
type mark struct {
	name     string
	from, to time.Duration
}

// report prints what a run came to.
func (r *run) report(v verdict) {
	c := &r.clients.counts
	fmt.Printf("seed %d, %v\n", r.seed, r.cluster)
	for _, m := range r.marks {
		fmt.Printf("%6.1f s to %6.1f s: %s\n", m.from.Seconds(), m.to.Seconds(), m.name)
	}
	fmt.Printf("judged: %d changes in etcd, %d operations, %d reads, %d watches, %d events; %d slow calls of fsync\n",
		v.changes, v.ops, v.reads, v.streams, v.events, r.slowSyncs)
	fmt.Printf("writes: %d acknowledged, %d unanswered; reads: %d, %d failed; watches: %d ended, %d told 410, %d refused\n",
		c.writes.Load(), c.unanswered.Load(), c.reads.Load(), c.unread.Load(), c.broken.Load(), c.expired.Load(), c.refused.Load())
	for _, line := range v.figures {
		fmt.Println(line)
	}
	for _, said := range slices.Sorted(maps.Keys(v.said)) {
		fmt.Printf("%d watches ended with %q\n", v.said[said], said)
	}
}
