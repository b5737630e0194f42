// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kube-watchcache/watchcache/bench/boundary"
)

// restarting measures what happens to the informers of three servers over one etcd
// when the servers are restarted one after the other, while devices change.
type restarting struct {
	servers
	// informers is how many all servers have.
	informers int
	// kill: the servers are killed, and none says anything to its clients.
	kill bool
}

const (
	restarted = 3
	// restartChanges is how many devices change a second.
	restartChanges = 20
)

func restartRows(o servers, s size) (rows []row) {
	for _, kill := range []bool{false, true} {
		how := "restarted"
		if kill {
			how = "killed"
		}
		rows = append(rows, row{
			name: fmt.Sprintf("three servers %s one by one, %s informers", how, thousands(s.informers)),
			figures: []figure{
				{name: "lists of informers", unit: count, goal: atMost(0)},
				{name: "bytes that they list", unit: octets, goal: noGoal()},
				{name: "until a server's informers watch again, longest", unit: nanoseconds, goal: noGoal()},
				{name: "CPU of a server until then, most", unit: nanoseconds, goal: noGoal()},
				{name: "highest live heap of a server, to that which stays", unit: ratio, goal: goal{most: 1.2, byMedian: true}},
				{name: "highest heap with garbage, to that which stays", unit: ratio, goal: noGoal()},
				{name: "heap that stays, most", unit: octets, goal: noGoal()},
				{name: figureHighest, unit: octets, goal: noGoal()},
			},
			subjects: withBoth,
			open:     restarting{servers: o, informers: s.informers, kill: kill}.open,
		})
	}
	return rows
}

func (m restarting) open(_ context.Context, s size) (*work, error) {
	m.informers = max(restarted, m.informers)
	return fresh(func(ctx context.Context, sub subject) (_ []float64, err error) {
		stage, err := m.servers.open(ctx, s.objects, false)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, stage.close()) }()
		return m.measure(ctx, stage, sub)
	}), nil
}

// member is a server and its informers.
type member struct {
	server    *boundary.Server
	informers *boundary.Informers
}

func (m restarting) measure(ctx context.Context, stage *stage, sub subject) (_ []float64, err error) {
	var members [restarted]*member
	defer func() {
		var ending errgroup.Group
		for _, one := range members {
			if one != nil {
				ending.Go(func() error { one.informers.Close(); return nil })
			}
		}
		_ = ending.Wait()
	}()
	for i := range members {
		server, err := stage.Start(ctx, forms[sub])
		if err != nil {
			return nil, err
		}
		members[i] = &member{server: server, informers: boundary.NewInformers(m.informers / restarted)}
		if err := members[i].informers.Connect(server); err != nil {
			return nil, err
		}
		if err := members[i].live(ctx); err != nil {
			return nil, err
		}
	}
	// The devices are older than what API servers have etcd keep of its history.
	if err := stage.Compact(ctx); err != nil {
		return nil, err
	}
	changes := stage.Write(ctx, forms[sub], restartChanges)
	defer func() { err = errors.Join(err, changes.End()) }()
	var before, after [2]int64
	for _, one := range members {
		lists, bytes := one.informers.Listed()
		before[0], before[1] = before[0]+lists, before[1]+bytes
	}
	var most aftermath
	for _, one := range members {
		seen, err := m.restart(ctx, stage, sub, one)
		if err != nil {
			return nil, err
		}
		most.raise(seen)
	}
	for _, one := range members {
		lists, bytes := one.informers.Listed()
		after[0], after[1] = after[0]+lists, after[1]+bytes
	}
	return []float64{
		float64(after[0] - before[0]), float64(after[1] - before[1]), float64(most.until), float64(most.cpu),
		most.live, most.objects, most.stays, most.resident,
	}, nil
}

// live returns when all informers of a server watch, and have done so for longer than
// client-go's Reflector wants: it lists when a watch ends in its first second and
// has brought nothing.
func (m *member) live(ctx context.Context) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		n, last := m.informers.Live()
		if n == m.informers.Len() && time.Since(last) > 1200*time.Millisecond {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d informers are live: %w", n, m.informers.Len(), ctx.Err())
		}
	}
}

// aftermath is what one restart takes.
type aftermath struct {
	until, cpu                     time.Duration
	live, objects, stays, resident float64
}

func (a *aftermath) raise(other aftermath) {
	a.until, a.cpu = max(a.until, other.until), max(a.cpu, other.cpu)
	a.live, a.objects = max(a.live, other.live), max(a.objects, other.objects)
	a.stays, a.resident = max(a.stays, other.stays), max(a.resident, other.resident)
}

func (m restarting) restart(ctx context.Context, stage *stage, sub subject, one *member) (a aftermath, err error) {
	one.informers.Disconnect() // a server that ends is taken out of service first
	if m.kill {
		one.server.Kill()
	} else if err := one.server.Stop(); err != nil {
		return a, err
	}
	began := time.Now()
	if one.server, err = stage.Start(ctx, forms[sub]); err != nil {
		return a, err
	}
	heap := one.server.WatchHeap(ctx)
	if err := one.informers.Connect(one.server); err != nil {
		return a, err
	}
	patience, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	live := one.live(patience)
	_, last := one.informers.Live()
	a.until = last.Sub(began)
	if a.cpu, err = one.server.CPU(); err != nil {
		return a, err
	}
	highest, objects, err := heap.End()
	if err := errors.Join(err, live); err != nil {
		return a, err
	}
	if err := one.server.Collect(ctx); err != nil {
		return a, err
	}
	stays, err := one.server.Heap(ctx)
	if err != nil {
		return a, err
	}
	memory, err := one.server.Memory()
	a.live, a.objects = float64(highest)/float64(stays.Live), float64(objects)/float64(stays.Live)
	a.stays, a.resident = float64(stays.Live), float64(memory.Highest)
	return a, err
}
