// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/storage"
)

// grown are the numbers of objects that the cost of each is measured at, and crowds
// those of watchers. The shipped cacher is measured with up to mostShipped watchers:
// each event wakes all of them.
var (
	grown  = []int{1_000, 10_000, 100_000, 1_000_000}
	crowds = []int{10, 100, 1_000, 10_000, 100_000}
)

const mostShipped = 10_000

// growthRows measure what one object, one read, one event and one watcher cost
// beside many others. A cost that does not depend on the others stays what it is.
func growthRows() (rows []row) {
	for _, n := range grown {
		rows = append(rows, row{
			name: thousands(n) + " objects", subjects: withShipped,
			figures: []figure{
				{name: "ready, each object", unit: nanoseconds, goal: noGoal()},
				{name: "GET", unit: nanoseconds, goal: noGoal()},
				{name: "LIST of a namespace, each object", unit: nanoseconds, goal: noGoal()},
				{name: "event", unit: nanoseconds, goal: noGoal()},
				{name: "heap of an object beyond it", unit: octets, goal: noGoal()},
			},
			open: growth{objects: n}.open,
		})
	}
	for _, n := range crowds {
		subjects := withShipped
		if n > mostShipped {
			subjects = nil
		}
		classes := min(max(1, n/10), dispatchObjects)
		rows = append(rows, row{
			name: fmt.Sprintf("%s watchers, %d match", thousands(n), n/classes), subjects: subjects, figures: event(noGoal()),
			open: dispatch{watchers: n, classes: classes, rate: 60, selector: byOwn, mark: markOwn}.open,
		}, row{
			name: thousands(n) + " watchers, idle", subjects: subjects,
			figures: []figure{
				{name: "memory", unit: octets, goal: noGoal()}, {name: "of it heap", unit: octets, goal: noGoal()},
				{name: "goroutines", unit: count, goal: noGoal()},
			},
			open: idle{watchers: n}.open,
		})
	}
	return rows
}

// byOwn selects a class by a label whose values are as many as the classes.
func byOwn(_, class int) (label, field string) { return ownLabel + "=" + strconv.Itoa(class), "" }

func markOwn(pod *corev1.Pod, class int) {
	pod.Labels = map[string]string{ownLabel: strconv.Itoa(class), "tier": "backend", "release": "stable"}
}

// growth measures one cache over so many objects.
type growth struct{ objects int }

// How often the parts of the measurement are repeated.
const (
	growthGets   = 20_000
	growthListed = 200_000 // objects
	growthEvents = 500
)

func (m growth) open(_ context.Context, s size) (*work, error) {
	n := max(namespaces, m.objects*s.objects/full.objects/namespaces*namespaces)
	pods := makePods(n)
	writes := updates(pods, min(n, s.of(growthEvents, s.repeats)))
	return fresh(func(ctx context.Context, sub subject) ([]float64, error) {
		return m.measure(ctx, s, sub, pods, writes)
	}), nil
}

func (m growth) measure(ctx context.Context, s size, sub subject, pods, writes []*corev1.Pod) (_ []float64, err error) {
	b := newBackend(pods)
	before, _ := memory()
	var c *cached
	ready, err := cost(len(pods), func() error {
		c, err = open(ctx, sub, b, cacheOptions{})
		return err
	})
	if err != nil {
		return nil, err
	}
	defer c.close()
	if err := settle(ctx); err != nil {
		return nil, err
	}
	after, _ := memory()
	repeated := func(repeats int, f func() error) float64 {
		each, failed := cost(repeats, func() error {
			for range repeats {
				if err := f(); err != nil {
					return err
				}
			}
			return nil
		})
		err = errors.Join(err, failed)
		return each
	}
	get := repeated(s.of(growthGets, s.repeats), func() error { return readOne(ctx, c, pods) })
	each := len(pods) / namespaces
	list := repeated(s.of(max(1, growthListed/each), s.repeats), func() error { return readNamespace(ctx, c, pods) }) / float64(each)
	if err != nil {
		return nil, err
	}
	event, err := m.event(ctx, c, writes)
	if err != nil {
		return nil, err
	}
	runtime.KeepAlive(pods)
	return []float64{ready, get, list, event, math.Max(0, after-before) / float64(len(pods))}, nil
}

// event returns the CPU time of an event that one watcher gets.
func (m growth) event(ctx context.Context, c *cached, writes []*corev1.Pod) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := c.Watch(ctx, prefix, storage.ListOptions{ResourceVersion: newest(writes), Predicate: storage.Everything, Recursive: true})
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	return cost(len(writes), func() error {
		for _, pod := range writes {
			if err := c.backend.emit(pod); err != nil {
				return err
			}
			if err := receive(ctx, w); err != nil {
				return err
			}
		}
		return nil
	})
}
