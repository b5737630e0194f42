// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"math"
	"runtime"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/storage"
)

// burst measures what becomes of watchers when events come as fast as the
// cache takes them.
type burst struct{ watchers int }

func (m burst) open(_ context.Context, s size) (*work, error) {
	pods := makePods(s.objects)
	writes := updates(pods, s.burst)
	watchers := s.of(m.watchers, s.watchers)
	return fresh(func(ctx context.Context, sub subject) ([]float64, error) {
		o, err := writeBurst{pods: pods, writes: writes, watchers: watchers}.run(ctx, s, sub)
		return []float64{float64(o.dropped), 100 * float64(o.lost) / float64(watchers*len(writes))}, err
	}), nil
}

// neverReading measures the same with clients that never read, and without them; rate
// is that of the events per second, 0 for full speed.
type neverReading struct{ watchers, stalled, rate int }

func (m neverReading) open(_ context.Context, s size) (*work, error) {
	pods := makePods(s.objects)
	events := s.burst
	if m.rate > 0 {
		events = max(1, int(float64(m.rate)*s.seconds))
	}
	with := writeBurst{pods: pods, writes: updates(pods, events), rate: m.rate, stalled: s.of(m.stalled, s.watchers)}
	with.watchers = s.of(m.watchers, s.watchers) - with.stalled
	without := with
	without.stalled = 0
	turn := 0
	return fresh(func(ctx context.Context, sub subject) ([]float64, error) {
		// Each comes first every other time, so that neither has a warmer process.
		bursts := []writeBurst{without, with}
		turn++
		var came [2]burstResult
		for _, which := range []int{turn % 2, 1 - turn%2} {
			var err error
			if came[which], err = bursts[which].run(ctx, s, sub); err != nil {
				return nil, err
			}
		}
		calm, o := came[0], came[1]
		if o.dropped > 0 || calm.dropped > 0 {
			o.p99, o.cpu = math.NaN(), math.NaN() // a cache that loses events delivers the others soon
		}
		return []float64{
			float64(o.dropped), 100 * float64(o.lost) / float64(with.watchers*events),
			o.p99, o.p99 / calm.p99, o.cpu / calm.cpu,
		}, nil
	}), nil
}

// writeBurst is many writes at once, and the clients that watch them.
type writeBurst struct {
	pods, writes      []*corev1.Pod
	rate              int
	watchers, stalled int
}

// burstResult is what came of a burst.
type burstResult struct {
	outcome
	p99 float64 // nanoseconds from the write to the client
	cpu float64 // nanoseconds
}

// sampled is of how many deliveries the latency of one is taken.
const sampled = 16

func (m writeBurst) run(ctx context.Context, s size, sub subject) (burstResult, error) {
	b := newBackend(m.pods)
	c, err := open(ctx, sub, b, cacheOptions{})
	if err != nil {
		return burstResult{}, err
	}
	defer c.close()
	written := make([]time.Time, len(m.writes))
	latencies := make([][]time.Duration, m.watchers)
	a := &watchClients{}
	defer a.leave()
	for i := range m.watchers + m.stalled {
		request := watchRequest{ctx: ctx, key: prefix, opts: storage.ListOptions{
			ResourceVersion: newest(m.writes), Predicate: storage.Everything, Recursive: true,
		}}
		if request.stalled = i >= m.watchers; !request.stalled {
			request.want = len(m.writes)
			latencies[i] = make([]time.Duration, 0, len(m.writes)/sampled+1)
			request.received = func(n int) {
				if n%sampled == i%sampled {
					latencies[i] = append(latencies[i], time.Since(written[n]))
				}
			}
		}
		if err := a.join(c, request); err != nil {
			return burstResult{}, err
		}
	}
	if err := settle(ctx); err != nil {
		return burstResult{}, err
	}
	runtime.GC()
	cpu, err := cost(1, func() error {
		if err := m.write(ctx, b, written); err != nil {
			return err
		}
		return a.await(ctx, 20*s.patience, everything)
	})
	if err != nil {
		return burstResult{}, err
	}
	a.leave()
	return burstResult{outcome: a.outcome(), p99: percentile(slices.Concat(latencies...), 99), cpu: cpu}, nil
}

// write emits all writes and notes when.
func (m writeBurst) write(ctx context.Context, b *backend, written []time.Time) error {
	emit := func(i int) error {
		written[i] = time.Now()
		return b.emit(m.writes[i])
	}
	if m.rate > 0 {
		return pace(ctx, m.rate, len(m.writes), emit)
	}
	for i := range m.writes {
		if err := emit(i); err != nil {
			return err
		}
	}
	return nil
}

// percentile returns the p-th percentile in nanoseconds, NaN of nothing.
func percentile(values []time.Duration, p int) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	return float64(values[(len(values)-1)*p/100])
}
