// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// progressInterval is the time between two progress requests while reads
	// go on waiting, and progressSpacing the least time between any two: a
	// read that begins to wait asks again, together with all who do so within
	// the spacing.
	progressInterval = 100 * time.Millisecond
	progressSpacing  = 5 * time.Millisecond
	// progressPatience bounds one request: the client of an unreachable etcd
	// holds it for as long as it may.
	progressPatience = time.Second
)

// progressRequester asks storage to report the progress of the cache's watch
// while reads wait for freshness, and is quiet otherwise. An idle resource
// gets no events; without a report the cache could not know that it is fresh.
type progressRequester struct {
	clock     clock.WithTicker
	freshness *freshness
	request   func(context.Context) error
	supported func() bool
}

// run returns when the context is done.
func (p *progressRequester) run(ctx context.Context) {
	var again <-chan time.Time
	for {
		select {
		case <-p.freshness.waiting:
		case <-again:
		case <-ctx.Done():
			return
		}
		again = nil
		if !p.freshness.anyone() {
			continue
		}
		if p.supported() {
			p.ask(ctx)
		}
		select {
		case <-p.clock.After(progressSpacing):
		case <-ctx.Done():
			return
		}
		again = p.clock.After(progressInterval - progressSpacing)
	}
}

func (p *progressRequester) ask(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, progressPatience)
	defer cancel()
	if err := p.request(bounded); err != nil && ctx.Err() == nil {
		klog.V(4).InfoS("The progress of a watch could not be requested", "err", err)
	}
}
