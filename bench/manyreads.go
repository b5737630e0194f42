// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// manyReads measures consistent LISTs of resources, each with an open watch, while
// somebody else writes to the same etcd. The shipped cacher is over the storage that an API
// server gives it: an etcd client for each resource.
type manyReads struct{ resources, seconds int }

const readsPerSecond = 100

func manyReadsRows() (rows []row) {
	for _, n := range []int{1000, 5000} {
		rows = append(rows, row{
			name: fmt.Sprintf("100 consistent LISTs a second of %d resources on one etcd", n), subjects: withShipped,
			figures: []figure{
				{name: "p50", unit: nanoseconds, goal: noGoal()},
				{name: "p99", unit: nanoseconds, goal: noGoal()},
				{name: "CPU of the server for each", unit: nanoseconds, goal: ofShipped(1)},
				{name: "CPU of etcd for each", unit: nanoseconds, goal: ofShipped(1)},
				{name: "messages to etcd's watches for each", unit: count, goal: noGoal()},
				{name: "messages from etcd's watches for each", unit: count, goal: noGoal()},
				{name: "CPU of the server in a second without", unit: nanoseconds, goal: ofShipped(1)},
				{name: "CPU of etcd in a second without", unit: nanoseconds, goal: ofShipped(1)},
				{name: "requests to etcd in a second without", unit: count, goal: ofShipped(1)},
				{name: "connections to etcd", unit: count, goal: ofShipped(1)},
				{name: "streams of watches", unit: count, goal: ofShipped(1)},
				{name: "until all are ready", unit: nanoseconds, goal: noGoal()},
			},
			open: manyReads{resources: n, seconds: 20}.open,
		})
	}
	return rows
}

func (m manyReads) open(ctx context.Context, s size) (*work, error) {
	m.seconds = s.of(m.seconds, s.repeats)
	of := manyCaches{resources: m.resources, objects: m.resources}
	w, c, err := of.prepare(ctx, s)
	if err != nil {
		return nil, err
	}
	w.measure = func(ctx context.Context, sub subject) ([]float64, error) { return m.measure(ctx, c, sub) }
	return w, nil
}

func (m manyReads) measure(ctx context.Context, c *crowded, sub subject) (_ []float64, err error) {
	none := c.carried(ctx)
	backend, err := etcd3.Open(ctx, etcd3.Config{Endpoints: c.etcd.Endpoints(), Prefix: "/registry"})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, backend.Close()) }()
	var clients []func()
	defer func() {
		for _, end := range clients {
			end()
		}
	}()
	began := time.Now()
	caches, waits, err := c.start(sub, func(r resource) (storage.Interface, error) {
		if sub != shipped {
			return c.over(backend, r)
		}
		config := storagebackend.NewDefaultConfig("/registry", c.codec)
		config.Transport.ServerList = c.etcd.Endpoints()
		s, end, err := decoration.Open(generic.NewRawStorage, decoration.Request{
			Config: config.ForResource(r.name), NewFunc: newPod, NewListFunc: newPodList, ResourcePrefix: r.prefix,
		})
		if err == nil {
			clients = append(clients, end)
		}
		return s, err
	})
	defer func() {
		for _, cache := range caches {
			cache.close()
		}
	}()
	if err != nil {
		return nil, err
	}
	for i, wait := range waits {
		if err := wait(ctx); err != nil {
			return nil, err
		}
		w, err := caches[i].Watch(ctx, "/"+resourceName(i)+"/", storage.ListOptions{Predicate: storage.Everything, Recursive: true})
		if err != nil {
			return nil, err
		}
		defer w.Stop()
	}
	ready := time.Since(began)
	other, err := c.write(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, other.end()) }()
	if _, err := m.read(ctx, caches, 1); err != nil { // the first ones open streams
		return nil, err
	}
	quietSince, idle, quiet := time.Now(), cpuTime(), c.carried(ctx)
	spentIdle, _, _ := c.used()
	if err := sleep(ctx, time.Duration(m.seconds)*time.Second/4); err != nil {
		return nil, err
	}
	seconds := time.Since(quietSince).Seconds()
	idle = cpuTime() - idle
	etcdIdle, _, _ := c.used()
	etcdIdle -= spentIdle
	busy := c.carried(ctx)
	own, before := cpuTime(), c.watchMessages(ctx)
	spent, _, _ := c.used()
	took, err := m.read(ctx, caches, m.seconds)
	if err != nil {
		return nil, err
	}
	own = cpuTime() - own
	cpu, _, _ := c.used()
	after := c.watchMessages(ctx)
	n := float64(len(took))
	return []float64{
		percentile(took, 50), percentile(took, 99), float64(own) / n, (cpu - spent) / n,
		(after.to - before.to) / n, (after.from - before.from) / n, float64(idle) / seconds,
		etcdIdle / seconds, (busy.reads - quiet.reads) / seconds, busy.connections - none.connections, busy.streams - none.streams,
		float64(ready),
	}, errors.Join(before.err, after.err, none.err, quiet.err, busy.err)
}

// read reads another resource each time.
func (m manyReads) read(ctx context.Context, caches []*cached, seconds int) ([]time.Duration, error) {
	return paced(ctx, readsPerSecond, seconds, func(ctx context.Context, _ int) error {
		i := rand.IntN(len(caches))
		return caches[i].GetList(ctx, "/"+resourceName(i)+"/", storage.ListOptions{Predicate: storage.Everything, Recursive: true}, &corev1.PodList{})
	})
}

// messages are those of etcd's watch streams since it began.
type messages struct {
	to, from float64
	err      error
}

func (c *crowded) watchMessages(ctx context.Context) (m messages) {
	const of = `{grpc_method="Watch",grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"}`
	var other error
	m.to, m.err = c.etcd.Metric(ctx, "grpc_server_msg_received_total"+of)
	m.from, other = c.etcd.Metric(ctx, "grpc_server_msg_sent_total"+of)
	m.err = errors.Join(m.err, other)
	return m
}

// carried is what etcd's clients have open, and how many reads etcd has answered since it
// began.
type carried struct {
	connections, streams, reads float64
	err                         error
}

func (c *crowded) carried(ctx context.Context) (all carried) {
	for name, to := range map[string]*float64{
		"process_open_fds":                       &all.connections,
		"etcd_debugging_mvcc_watch_stream_total": &all.streams,
		`grpc_server_handled_total{grpc_code="OK",grpc_method="Range",grpc_service="etcdserverpb.KV",grpc_type="unary"}`: &all.reads,
	} {
		value, err := c.etcd.Metric(ctx, name)
		*to, all.err = value, errors.Join(all.err, err)
	}
	return all
}
