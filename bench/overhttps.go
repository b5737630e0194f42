// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/kube-watchcache/watchcache/bench/boundary"
	"github.com/kube-watchcache/watchcache/bench/boundary/form"
)

// forms is which server each subject is.
var forms = map[subject]form.Form{ours: form.Ours, installed: form.Plain, shipped: form.Shipped, floor: form.Floor}

// servers is how the servers of the boundary are run.
type servers struct {
	// program is the compiled server.
	program string
	// flags are more flags for those with our cache.
	flags []string
}

// compileServers compiles the server into dir, with the race detector if this
// program has it, and etcd, so that nothing is compiled while something is
// measured.
func compileServers(dir string) (program string, err error) {
	program = filepath.Join(dir, "server")
	var flags []string
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			if setting.Key == "-race" && setting.Value == "true" {
				flags = append(flags, "-race")
			}
		}
	}
	return program, boundary.Compile(program, flags...)
}

// stage is an etcd and the servers over it, which are started when they are
// measured for the first time, with a client for each.
type stage struct {
	*boundary.Stage
	objects int
	running map[subject]*boundary.Server
	clients map[subject]*boundary.Client
}

func (o servers) open(ctx context.Context, objects int, embedded bool) (*stage, error) {
	s, err := boundary.Open(ctx, boundary.Config{Program: o.program, Flags: o.flags, Objects: objects, EmbeddedEtcd: embedded})
	if err != nil {
		return nil, err
	}
	return &stage{Stage: s, objects: objects, running: map[subject]*boundary.Server{}, clients: map[subject]*boundary.Client{}}, nil
}

// server returns the subject's server and its client.
func (s *stage) server(ctx context.Context, sub subject) (*boundary.Server, *boundary.Client, error) {
	if s.running[sub] != nil {
		return s.running[sub], s.clients[sub], nil
	}
	server, err := s.Start(ctx, forms[sub])
	if err != nil {
		return nil, nil, err
	}
	client, err := server.Connect()
	if err != nil {
		return nil, nil, err
	}
	s.running[sub], s.clients[sub] = server, client
	return server, client, nil
}

// stop ends the subject's server, so that the next one finds the machine's memory.
func (s *stage) stop(sub subject) error {
	s.clients[sub].Close()
	server := s.running[sub]
	delete(s.running, sub)
	delete(s.clients, sub)
	return server.Stop()
}

func (s *stage) close() error {
	for _, client := range s.clients {
		client.Close()
	}
	return s.Close()
}

// look is what a server has spent so far.
type look struct {
	at   time.Time
	cpu  time.Duration
	wire int64
}

func lookAt(server *boundary.Server, received func() int64) (look, error) {
	cpu, err := server.CPU()
	return look{at: time.Now(), cpu: cpu, wire: received()}, err
}

// spent is what was spent between two looks.
func (l look) spent(since look) look {
	return look{cpu: l.cpu - since.cpu, wire: l.wire - since.wire}
}

// traffic is work over HTTPS that can be done again and again. The work calls took
// with the time that each of its requests has taken.
type traffic func(ctx context.Context, took func(time.Duration)) error

func nothing(time.Duration) {}

// measureLoad does the work n times, and returns the figures of atRest.
func measureLoad(ctx context.Context, n int, server *boundary.Server, received func() int64, l traffic) ([]float64, error) {
	var latencies []time.Duration
	before, err := lookAt(server, received)
	if err != nil {
		return nil, err
	}
	for range n {
		if err := l(ctx, func(d time.Duration) { latencies = append(latencies, d) }); err != nil {
			return nil, err
		}
	}
	return costOf(server, received, before, latencies)
}

// costOf returns the figures of atRest, for each of the requests.
func costOf(server *boundary.Server, received func() int64, before look, latencies []time.Duration) ([]float64, error) {
	after, err := lookAt(server, received)
	if err != nil {
		return nil, err
	}
	memory, err := server.Memory()
	if err != nil {
		return nil, err
	}
	spent, n := after.spent(before), float64(len(latencies))
	return []float64{
		float64(spent.cpu) / n, percentile(latencies, 50), percentile(latencies, 99), float64(spent.wire) / n, float64(memory.Resident),
	}, nil
}

// profileSeconds is for how long a row of the size is profiled.
func profileSeconds(s size) int { return max(1, int(s.seconds)) }

// listing measures lists.
type listing struct {
	servers
	request boundary.Request
	// pages: the whole is listed in pages, and each is a request.
	pages   bool
	repeats int
	// changes is how many devices change each second, perSecond how many lists
	// are begun then: what a list costs depends on how much has changed since the
	// one before.
	changes, perSecond int
	// away: nobody lists for the first five seconds of the changes.
	away bool
}

func (m listing) open(ctx context.Context, s size) (*work, error) {
	stage, err := m.servers.open(ctx, s.objects, false)
	if err != nil {
		return nil, err
	}
	measure := func(ctx context.Context, sub subject) ([]float64, error) { return m.measure(ctx, s, stage, sub) }
	profile := func(ctx context.Context, sub subject) (boundary.Breakdown, error) {
		return m.profile(ctx, s, stage, sub)
	}
	return &work{measure: measure, profile: profile, close: stage.close}, nil
}

func (m listing) load(client *boundary.Client, objects int) traffic {
	return func(ctx context.Context, took func(time.Duration)) error {
		if m.pages {
			return client.Walk(ctx, m.request, objects, pageSize, took)
		}
		begun := time.Now()
		err := client.List(ctx, m.request)
		took(time.Since(begun))
		return err
	}
}

// warm checks an answer, and lists as often as it takes until bytes are kept.
func (m listing) warm(ctx context.Context, stage *stage, client *boundary.Client) error {
	if !m.pages {
		if err := client.CheckedList(ctx, m.request, stage.objects); err != nil {
			return err
		}
	}
	for range 3 {
		if err := m.load(client, stage.objects)(ctx, nothing); err != nil {
			return err
		}
	}
	return nil
}

func (m listing) measure(ctx context.Context, s size, stage *stage, sub subject) (_ []float64, err error) {
	server, client, err := stage.server(ctx, sub)
	if err != nil {
		return nil, err
	}
	if err := m.warm(ctx, stage, client); err != nil {
		return nil, err
	}
	n := s.of(m.repeats, s.repeats)
	if m.changes == 0 {
		return measureLoad(ctx, n, server, client.Received, m.load(client, stage.objects))
	}
	changes := stage.Write(ctx, forms[sub], m.changes)
	defer func() { err = errors.Join(err, changes.End()) }()
	pause := time.Duration(s.seconds * float64(time.Second))
	if m.away {
		if err := sleep(ctx, pause*5/3); err != nil { // pause is three seconds
			return nil, err
		}
	}
	ticker := time.NewTicker(time.Second / time.Duration(m.perSecond))
	defer ticker.Stop()
	begun, written := time.Now(), changes.Written()
	paced := func(ctx context.Context, took func(time.Duration)) error {
		err := m.load(client, stage.objects)(ctx, took)
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
		return errors.Join(err, ctx.Err())
	}
	figures, err := measureLoad(ctx, n, server, client.Received, paced)
	if err != nil {
		return nil, err
	}
	seconds := time.Since(begun).Seconds()
	rate := float64(changes.Written()-written) / seconds
	// Afterwards: lists that follow a pause find more changed than those that don't.
	without, err := m.costOfChanges(ctx, server, client, pause)
	if err != nil {
		return nil, err
	}
	less := figures[0] - without*seconds/float64(n)
	return append(append([]float64{less}, figures...), rate), nil
}

// costOfChanges returns the CPU time that the server spends each second while
// nobody lists, in nanoseconds.
func (m listing) costOfChanges(ctx context.Context, server *boundary.Server, client *boundary.Client, d time.Duration) (float64, error) {
	before, err := lookAt(server, client.Received)
	if err != nil {
		return 0, err
	}
	if err := sleep(ctx, d); err != nil {
		return 0, err
	}
	after, err := lookAt(server, client.Received)
	return float64(after.cpu-before.cpu) / after.at.Sub(before.at).Seconds(), err
}

func (m listing) profile(ctx context.Context, s size, stage *stage, sub subject) (_ boundary.Breakdown, err error) {
	server, client, err := stage.server(ctx, sub)
	if err != nil {
		return nil, err
	}
	busy := func(ctx context.Context) error { return m.load(client, stage.objects)(ctx, nothing) }
	if m.changes > 0 {
		changes := stage.Write(ctx, forms[sub], m.changes)
		defer func() { err = errors.Join(err, changes.End()) }()
		interval := time.Second / time.Duration(m.perSecond)
		listed := busy
		busy = func(ctx context.Context) error {
			begun := time.Now()
			if err := listed(ctx); err != nil {
				return err
			}
			return sleep(ctx, interval-time.Since(begun))
		}
	}
	return server.Profile(ctx, profileSeconds(s), busy)
}

// sleep waits for a time that is a part of the measurement.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// scale measures lists of so many objects, one server at a time.
type scale struct {
	servers
	objects int
}

func (m scale) open(ctx context.Context, s size) (*work, error) {
	stage, err := m.servers.open(ctx, m.objects, false)
	if err != nil {
		return nil, err
	}
	// As many bytes are listed whatever the number of objects, within limits.
	n := min(40, max(3, s.of(100_000, s.repeats)/m.objects))
	return &work{close: stage.close, measure: func(ctx context.Context, sub subject) ([]float64, error) {
		figures, err := m.measure(ctx, n, stage, sub)
		if err != nil {
			return nil, err
		}
		return figures, stage.stop(sub)
	}}, nil
}

func (m scale) measure(ctx context.Context, n int, stage *stage, sub subject) ([]float64, error) {
	server, client, err := stage.server(ctx, sub)
	if err != nil {
		return nil, err
	}
	var figures []float64
	for _, gzip := range []bool{false, true} {
		lists := listing{request: fromCache(boundary.V1, boundary.JSON, gzip)}
		if err := lists.warm(ctx, stage, client); err != nil {
			return nil, err
		}
		measured, err := measureLoad(ctx, n, server, client.Received, lists.load(client, stage.objects))
		if err != nil {
			return nil, err
		}
		figures = append(figures, measured[0])
	}
	memory, err := server.Memory()
	return append(figures, float64(memory.Resident)), err
}

// resident measures the memory of a new server whose clients have listed.
type resident struct {
	servers
	embedded bool
}

func (m resident) open(ctx context.Context, s size) (*work, error) {
	stage, err := m.servers.open(ctx, s.objects, m.embedded)
	if err != nil {
		return nil, err
	}
	return &work{close: stage.close, measure: func(ctx context.Context, sub subject) ([]float64, error) {
		figures, err := m.measure(ctx, stage, sub)
		if err != nil {
			return nil, err
		}
		return figures, stage.stop(sub)
	}}, nil
}

func (m resident) measure(ctx context.Context, stage *stage, sub subject) ([]float64, error) {
	server, client, err := stage.server(ctx, sub)
	if err != nil {
		return nil, err
	}
	for _, request := range []boundary.Request{
		fromCache(boundary.V1, boundary.JSON, false), fromCache(boundary.V1, boundary.JSON, true),
		fromCache(boundary.V1, boundary.Table, false), fromCache(boundary.V1Beta1, boundary.JSON, false),
	} {
		if err := (listing{request: request}).warm(ctx, stage, client); err != nil {
			return nil, fmt.Errorf("%s: %w", request.Accept, err)
		}
	}
	memory, err := server.Memory()
	if err != nil {
		return nil, err
	}
	heap, err := server.Heap(ctx)
	return []float64{
		float64(memory.Resident), float64(memory.Highest), float64(heap.Live), float64(heap.Goal), float64(heap.Idle), float64(heap.Kept),
	}, err
}
