// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kube-watchcache/watchcache/bench/boundary"
)

// inUse measures a server under all that its clients do at once: client-go's informers,
// writes, LISTs by label, kubectl get, and then a restart while the writes go on.
type inUse struct {
	servers
	informers, seconds int
}

// The requests of a second.
const (
	inUseWrites = 100
	inUseLists  = 10
	inUseTables = 2
)

func inUseRows(o servers, s size) []row {
	n := min(200, s.informers)
	return []row{{
		name: fmt.Sprintf("%s devices in use by %d informers, %d writes/s, LISTs by label, kubectl get", thousands(s.of(s.objects, 400)), n, inUseWrites),
		figures: []figure{
			{name: "CPU of a second", unit: nanoseconds, goal: noGoal()},
			{name: "write to event, p50", unit: nanoseconds, goal: noGoal()},
			{name: "write to event, p99", unit: nanoseconds, goal: noGoal()},
			{name: "write, p99", unit: nanoseconds, goal: noGoal()},
			{name: "LIST by label, p50", unit: nanoseconds, goal: noGoal()},
			{name: "LIST by label, p99", unit: nanoseconds, goal: noGoal()},
			{name: "kubectl get of a namespace, p50", unit: nanoseconds, goal: noGoal()},
			{name: "kubectl get of a namespace, p99", unit: nanoseconds, goal: noGoal()},
			{name: figureResident, unit: octets, goal: noGoal()},
			{name: "restart, until all informers watch again", unit: nanoseconds, goal: noGoal()},
			{name: "restart, CPU until then", unit: nanoseconds, goal: noGoal()},
			{name: "restart, lists of informers", unit: count, goal: atMost(0)},
			{name: "restart, highest resident memory", unit: octets, goal: noGoal()},
		},
		subjects: withBoth,
		open:     inUse{servers: o, informers: n, seconds: 30}.open,
	}}
}

func (m inUse) open(ctx context.Context, s size) (*work, error) {
	stage, err := m.servers.open(ctx, s.of(s.objects, 400), false)
	if err != nil {
		return nil, err
	}
	m.seconds = s.of(m.seconds, s.repeats)
	measure := func(ctx context.Context, sub subject) ([]float64, error) { return m.measure(ctx, stage, sub) }
	return &work{measure: measure, close: stage.close}, nil
}

func (m inUse) measure(ctx context.Context, stage *stage, sub subject) (_ []float64, err error) {
	server, err := stage.Start(ctx, forms[sub])
	if err != nil {
		return nil, err
	}
	one := &member{server: server, informers: boundary.NewInformers(m.informers)}
	defer func() {
		one.informers.Close()
		err = errors.Join(err, one.server.Stop())
	}()
	if err := one.informers.Connect(server); err != nil {
		return nil, err
	}
	if err := one.live(ctx); err != nil {
		return nil, err
	}
	figures, err := m.steady(ctx, stage, server)
	if err != nil {
		return nil, err
	}
	// The devices are older than what API servers have etcd keep of its history.
	if err := stage.Compact(ctx); err != nil {
		return nil, err
	}
	changes := stage.Write(ctx, forms[sub], inUseWrites)
	defer func() { err = errors.Join(err, changes.End()) }()
	before, _ := one.informers.Listed()
	seen, err := restarting{}.restart(ctx, stage, sub, one)
	if err != nil {
		return nil, err
	}
	after, _ := one.informers.Listed()
	return append(figures, float64(seen.until), float64(seen.cpu), float64(after-before), seen.resident), nil
}

// steady returns the figures from before the restart.
func (m inUse) steady(ctx context.Context, stage *stage, server *boundary.Server) ([]float64, error) {
	clients, err := connect(server, 3)
	if err != nil {
		return nil, err
	}
	defer clients.close()
	writer, reader, watcher := clients.clients[0], clients.clients[1], clients.clients[2]
	latest, err := watcher.Latest(ctx)
	if err != nil {
		return nil, err
	}
	w, err := watcher.OpenWatch(ctx, latest)
	if err != nil {
		return nil, err
	}
	events := follow(w, m.seconds*inUseWrites)
	before, err := server.CPU()
	if err != nil {
		return nil, err
	}
	var writes, lists, tables []time.Duration
	var mu sync.Mutex
	begun := map[string]time.Time{}
	load, loading := errgroup.WithContext(ctx)
	load.Go(func() (err error) {
		writes, err = paced(loading, inUseWrites, m.seconds, func(ctx context.Context, n int) error {
			at := time.Now()
			version, err := writer.Annotate(ctx, n%stage.objects, n)
			mu.Lock()
			defer mu.Unlock()
			begun[version] = at
			return err
		})
		return err
	})
	load.Go(func() (err error) {
		lists, err = paced(loading, inUseLists, m.seconds, func(ctx context.Context, n int) error {
			selector := url.Values{"labelSelector": {fmt.Sprintf("fleet.example.com/batch=batch-%02d", n%100)}}
			return reader.List(ctx, boundary.Request{Path: boundary.V1, Accept: boundary.JSON, Gzip: true, Query: selector})
		})
		return err
	})
	load.Go(func() (err error) {
		tables, err = paced(loading, inUseTables, m.seconds, func(ctx context.Context, n int) error {
			return reader.List(ctx, boundary.Request{Path: boundary.V1In(n), Accept: boundary.Table, Gzip: true, Query: url.Values{"limit": {"500"}}})
		})
		return err
	})
	err = load.Wait()
	after, failed := server.CPU()
	if err := errors.Join(err, failed); err != nil {
		w.End()
		return nil, err
	}
	arrived, err := events(ctx)
	if err != nil {
		return nil, err
	}
	var latencies []time.Duration
	for version, at := range begun {
		latencies = append(latencies, arrived[version].Sub(at))
	}
	memory, err := server.Memory()
	return []float64{
		float64(after-before) / float64(m.seconds), percentile(latencies, 50), percentile(latencies, 99), percentile(writes, 99),
		percentile(lists, 50), percentile(lists, 99), percentile(tables, 50), percentile(tables, 99), float64(memory.Resident),
	}, err
}

// follow notes when the first n events of a watch come, and ends it. The function that
// it returns waits for them.
func follow(w *boundary.Watch, n int) func(context.Context) (map[string]time.Time, error) {
	arrived, done := make(map[string]time.Time, n), make(chan error, 1)
	// Ends with the watch.
	go func() {
		for len(arrived) < n {
			version, err := w.NextVersion()
			if err != nil {
				done <- err
				return
			}
			arrived[version] = time.Now()
		}
		done <- nil
	}()
	return func(ctx context.Context) (map[string]time.Time, error) {
		ended := context.AfterFunc(ctx, w.End)
		defer func() { ended(); w.End() }()
		return arrived, <-done
	}
}
