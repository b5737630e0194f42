// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
)

// reading measures what one read costs.
type reading struct {
	repeats int
	options func(subject) cacheOptions
	// read does one read and checks what it brings.
	read func(ctx context.Context, c *cached, pods []*corev1.Pod) error
	// least does the least that a read must do; nil: there is no such thing.
	least func(pods []*corev1.Pod)
	// adapts: ours has an index first that it has built because reads needed it.
	adapts bool
}

func (m reading) open(ctx context.Context, s size) (*work, error) {
	pods := makePods(s.objects)
	caches, err := sideBySide(ctx, pods, 0, m.options)
	if err != nil {
		return nil, err
	}
	if m.adapts {
		if err := m.adapt(ctx, caches[ours], pods); err != nil {
			return nil, errors.Join(err, caches.close())
		}
	}
	n := s.of(m.repeats, s.repeats)
	measure := func(ctx context.Context, sub subject) ([]float64, error) {
		once := func() error { return m.read(ctx, caches[sub], pods) }
		if sub == floor {
			once = func() error { m.least(pods); return nil }
		}
		if err := once(); err != nil {
			return nil, err
		}
		each, err := cost(n, func() error {
			for range n {
				if err := once(); err != nil {
					return err
				}
			}
			return nil
		})
		return []float64{each}, err
	}
	return &work{measure: measure, close: caches.close}, nil
}

// adapt reads until ours has built an index.
func (m reading) adapt(ctx context.Context, c *cached, pods []*corev1.Pod) error {
	for len(c.Interface.(*cacher.Cacher).Status().AdaptiveIndexes) == 0 {
		if err := cmp.Or(ctx.Err(), m.read(ctx, c, pods)); err != nil {
			return err
		}
	}
	return nil
}

func noIndex(subject) cacheOptions { return cacheOptions{adaptive: -1} }

// ourLabelIndex gives ours alone an index of the label, bothLabelIndex both.
func ourLabelIndex(s subject) cacheOptions {
	if s == ours {
		return bothLabelIndex(s)
	}
	return cacheOptions{}
}
func bothLabelIndex(subject) cacheOptions { return cacheOptions{labels: []string{appLabel}} }

// sink keeps the compiler from leaving out what a floor does.
var sink []corev1.Pod

func copyPods(pods []*corev1.Pod) {
	sink = make([]corev1.Pod, len(pods))
	for i, pod := range pods {
		sink[i] = *pod
	}
}

func copyAll(pods []*corev1.Pod) { copyPods(pods) }

// copyHundredth copies as many Pods as have one label, or are in one namespace.
func copyHundredth(pods []*corev1.Pod) { copyPods(pods[:len(pods)/namespaces]) }

var onePod corev1.Pod

func copyOne(pods []*corev1.Pod) { onePod = *pods[len(pods)/2] }

// readOne gets into an object that is there already, as the floor does: making
// one is the caller's work.
func readOne(ctx context.Context, c *cached, pods []*corev1.Pod) error {
	want := pods[len(pods)/2]
	err := c.Get(ctx, prefix+want.Namespace+"/"+want.Name, storage.GetOptions{ResourceVersion: "0"}, &onePod)
	if err == nil && onePod.Name != want.Name {
		return fmt.Errorf("GET brought %q, want %q", onePod.Name, want.Name)
	}
	return err
}

// list lists and fails unless that brings n items.
func list(ctx context.Context, c *cached, key string, opts storage.ListOptions, n int) (*corev1.PodList, error) {
	var pods corev1.PodList
	opts.Recursive = true
	if err := c.GetList(ctx, key, opts, &pods); err != nil {
		return nil, err
	}
	if len(pods.Items) != n {
		return nil, fmt.Errorf("LIST of %s brought %d items, want %d", key, len(pods.Items), n)
	}
	return &pods, nil
}

func readAll(ctx context.Context, c *cached, pods []*corev1.Pod) error {
	_, err := list(ctx, c, prefix, storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything}, len(pods))
	return err
}

func readLabel(ctx context.Context, c *cached, pods []*corev1.Pod) error {
	p, err := predicate(appLabel+"="+appName(7), "")
	if err != nil {
		return err
	}
	p.IndexLabels = []string{appLabel}
	_, err = list(ctx, c, prefix, storage.ListOptions{ResourceVersion: "0", Predicate: p}, len(pods)/apps)
	return err
}

func readNamespace(ctx context.Context, c *cached, pods []*corev1.Pod) error {
	opts := storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything}
	_, err := list(ctx, c, prefix+namespaceName(42), opts, len(pods)/namespaces)
	return err
}

// pageSize is client-go's.
const pageSize = 500

// readPages walks over everything in pages, consistently.
func readPages(ctx context.Context, c *cached, pods []*corev1.Pod) error {
	p := storage.SelectionPredicate{Label: storage.Everything.Label, Field: storage.Everything.Field, GetAttrs: podAttrs, Limit: pageSize}
	for left := len(pods); left > 0; {
		n := min(left, pageSize)
		page, err := list(ctx, c, prefix, storage.ListOptions{Predicate: p}, n)
		if err != nil {
			return err
		}
		left -= n
		if p.Continue = page.Continue; (p.Continue == "") != (left == 0) {
			return fmt.Errorf("with %d items left the continue token is %q", left, p.Continue)
		}
	}
	return nil
}
