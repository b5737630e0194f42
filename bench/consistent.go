// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/storage"
)

// consistent counts the requests that reach storage when many consistent reads
// come at once.
type consistent struct {
	readers, repeats int
	read             func(ctx context.Context, c *cached, pods []*corev1.Pod) error
}

func (m consistent) open(ctx context.Context, s size) (*work, error) {
	pods := makePods(s.objects)
	caches, err := sideBySide(ctx, pods, s.roundTrip, plain)
	if err != nil {
		return nil, err
	}
	n := s.of(m.repeats, s.repeats)
	measure := func(ctx context.Context, sub subject) ([]float64, error) {
		c := caches[sub]
		most := int64(0)
		each, err := cost(n*m.readers, func() error {
			for range n {
				before := c.backend.versions.Load() + c.backend.gets.Load()
				if err := m.atOnce(ctx, c, pods); err != nil {
					return err
				}
				most = max(most, c.backend.versions.Load()+c.backend.gets.Load()-before)
			}
			return nil
		})
		return []float64{float64(most), each}, err
	}
	return &work{measure: measure, close: caches.close}, nil
}

// atOnce lets all readers read at the same time, each once.
func (m consistent) atOnce(ctx context.Context, c *cached, pods []*corev1.Pod) error {
	errs := make([]error, m.readers)
	begin := make(chan struct{})
	var running sync.WaitGroup
	for i := range m.readers {
		running.Go(func() {
			<-begin
			errs[i] = m.read(ctx, c, pods)
		})
	}
	close(begin)
	running.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func readOneConsistently(ctx context.Context, c *cached, pods []*corev1.Pod) error {
	want := pods[len(pods)/2]
	return c.Get(ctx, prefix+want.Namespace+"/"+want.Name, storage.GetOptions{}, &corev1.Pod{})
}

// listOneConsistently lists one object, so that the reads themselves take next
// to no time.
func listOneConsistently(ctx context.Context, c *cached, pods []*corev1.Pod) error {
	p := storage.Everything
	p.Limit = 1
	_, err := list(ctx, c, prefix+namespaceName(42), storage.ListOptions{Predicate: p}, 1)
	return err
}
