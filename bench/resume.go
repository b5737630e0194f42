// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/storage"
)

// ownLabel is a label of which each Pod of resuming has its own value.
const ownLabel = "own"

// resuming measures what it costs in all that watchers resume, as after a restart
// of their server: each takes the events that are for it out of those that came
// since it left, and stays until all have theirs.
type resuming struct {
	watchers, events int
	selector         func(i int) (label, field string)
}

func (m resuming) open(_ context.Context, s size) (*work, error) {
	pods := makePods(s.objects)
	writes := updates(pods, s.of(m.events, s.repeats))
	for i, pod := range writes {
		pod.Labels = maps.Clone(pod.Labels)
		pod.Labels[ownLabel] = strconv.Itoa(i)
	}
	asked, err := m.ask(s.of(m.watchers, s.watchers), writes)
	if err != nil {
		return nil, err
	}
	return fresh(func(ctx context.Context, sub subject) ([]float64, error) {
		b := newBackend(pods)
		c, err := open(ctx, sub, b, cacheOptions{})
		if err != nil {
			return nil, err
		}
		defer c.close()
		if err := m.await(ctx, c, b, writes); err != nil {
			return nil, err
		}
		total, err := cost(1, func() error { return resume(ctx, c, newest(writes), asked) })
		return []float64{total}, err
	}), nil
}

// asks is what one watcher asks for, and how many events it is to get.
type asks struct {
	predicate storage.SelectionPredicate
	events    int
}

// ask returns what the watchers ask for.
func (m resuming) ask(watchers int, writes []*corev1.Pod) ([]asks, error) {
	counted := map[string]int{}
	out := make([]asks, watchers)
	for i := range out {
		label, field := m.selector(i)
		p, err := predicate(label, field)
		if err != nil {
			return nil, err
		}
		n, known := counted[label+";"+field]
		for _, pod := range writes {
			if known {
				break
			}
			labels, fields, err := podAttrs(pod)
			if err != nil {
				return nil, err
			}
			if p.Label.Matches(labels) && p.Field.Matches(fields) {
				n++
			}
		}
		counted[label+";"+field] = n
		out[i] = asks{p, n}
	}
	return out, nil
}

// await makes the changes, and returns when the cache has all of them.
func (m resuming) await(ctx context.Context, c *cached, b *backend, writes []*corev1.Pod) error {
	w, err := c.Watch(ctx, prefix, storage.ListOptions{ResourceVersion: newest(writes), Predicate: storage.Everything, Recursive: true})
	if err != nil {
		return err
	}
	defer w.Stop()
	for _, pod := range writes {
		if err := b.emit(pod); err != nil {
			return err
		}
		if err := receive(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// resume has all watchers resume at once, from a resourceVersion.
func resume(ctx context.Context, c *cached, from string, asked []asks) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all errgroup.Group
	for i, a := range asked {
		w, err := c.Watch(ctx, prefix, storage.ListOptions{ResourceVersion: from, Predicate: a.predicate, Recursive: true})
		if err != nil {
			return fmt.Errorf("watcher %d: %w", i, err)
		}
		defer w.Stop()
		all.Go(func() error {
			for n := range a.events {
				if err := receive(ctx, w); err != nil {
					return fmt.Errorf("watcher %d, event %d of %d: %w", i, n, a.events, err)
				}
			}
			return nil
		})
	}
	return all.Wait()
}
