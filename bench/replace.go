// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"strconv"

	apiruntime "k8s.io/apimachinery/pkg/runtime"

	computed "github.com/kube-watchcache/watchcache/storage/memory"
)

// replacing measures a Replace of a store in memory by a state where one in a hundred
// objects has changed. The floor compares each object with a copy of it.
type replacing struct{ repeats int }

func (m replacing) open(ctx context.Context, s size) (*work, error) {
	pods := makePods(5 * s.objects)
	objs, copies := make([]apiruntime.Object, len(pods)), make([]apiruntime.Object, len(pods))
	for i, pod := range pods {
		pod.ResourceVersion = ""
		objs[i], copies[i] = pod, pod.DeepCopy()
	}
	store, err := computed.New(computed.Config{
		GroupResource: podResource, ResourcePrefix: prefix, KeyFunc: podKey, GetAttrsFunc: podAttrs, NewFunc: newPod,
	})
	if err != nil {
		return nil, err
	}
	if err := store.Replace(ctx, objs); err != nil {
		return nil, err
	}
	n, round := s.of(m.repeats, s.repeats), 0
	replace := func() error {
		round++
		for i := round % 100; i < len(pods); i += 100 {
			pods[i].Status.PodIP = strconv.Itoa(round)
		}
		return store.Replace(ctx, objs)
	}
	return fresh(func(ctx context.Context, sub subject) ([]float64, error) {
		first, err := store.GetCurrentResourceVersion(ctx)
		if err != nil {
			return nil, err
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		each, err := cost(n, func() error {
			for range n {
				if sub == floor {
					compare(objs, copies)
				} else if err := replace(); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		runtime.ReadMemStats(&after)
		last, err := store.GetCurrentResourceVersion(ctx)
		if want := uint64(n * len(pods) / 100); err == nil && sub != floor && last-first != want {
			err = fmt.Errorf("%d changes, want %d", last-first, want)
		}
		return []float64{each, float64(after.Mallocs-before.Mallocs) / float64(n)}, err
	}), nil
}

// compare returns how many objects differ.
func compare(a, b []apiruntime.Object) (different int) {
	for i := range a {
		if !reflect.DeepEqual(a[i], b[i]) {
			different++
		}
	}
	return different
}
