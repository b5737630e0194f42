// SPDX-License-Identifier: Apache-2.0

package listcache

import (
	"context"

	"k8s.io/apimachinery/pkg/watch"
)

// sharedKey marks the context of a watch whose reader takes the events as they are.
type sharedKey struct{}

// ShareInitialEvents returns a context for a watch whose reader changes none of its
// events and, within Stream, writes all of them to the response, in order.
func (l *Listings) ShareInitialEvents(ctx context.Context) context.Context {
	return context.WithValue(ctx, sharedKey{}, true)
}

// SharesInitialEvents reports whether a watch that is opened with the context may share
// its initial events with others. It may not if a registry's Decorator could read them,
// which changes objects and recognizes them by their Go type. Servers of custom
// resources have no Decorator.
func (l *Listings) SharesInitialEvents(ctx context.Context) bool {
	return (l != nil && l.custom.Load()) || ctx.Value(sharedKey{}) != nil
}

// Probe is a watch without events, which a cache returns at once to a caller whose
// context has it. A caller that gets this very watch back from a registry reads the
// registry's watches as the cache returns them: nothing changes or filters their events.
type Probe struct{ ended chan watch.Event }

var _ watch.Interface = (*Probe)(nil)

type probeKey struct{}

// NewProbe returns a Probe, and a context that has it.
func NewProbe(ctx context.Context) (*Probe, context.Context) {
	p := &Probe{ended: make(chan watch.Event)}
	close(p.ended)
	return p, context.WithValue(ctx, probeKey{}, p)
}

// ProbeOf returns the Probe of a context, nil if there is none.
func ProbeOf(ctx context.Context) *Probe {
	p, _ := ctx.Value(probeKey{}).(*Probe)
	return p
}

// ResultChan implements watch.Interface.
func (p *Probe) ResultChan() <-chan watch.Event { return p.ended }

// Stop implements watch.Interface.
func (*Probe) Stop() {}
