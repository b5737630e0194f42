// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"golang.org/x/sync/errgroup"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// ready measures what it takes to fill a cache, for each object, from a storage in
// memory that has the objects ready.
type ready struct {
	repeats int
	options func(subject) cacheOptions
}

// podNameLabel has another value for each Pod, as StatefulSets label theirs.
const podNameLabel = "statefulset.kubernetes.io/pod-name"

// ourLabelsAndNode has two indexes of labels, of one value for each Pod and of a hundred,
// where the shipped cacher has one of a field.
func ourLabelsAndNode(s subject) cacheOptions {
	if s == ours {
		return cacheOptions{labels: []string{podNameLabel, appLabel}}
	}
	return nodeIndex(s)
}

func nodeIndex(subject) cacheOptions { return cacheOptions{nodeIndex: true} }

func readyRows() []row {
	return []row{{
		name: "time to ready, per object", subjects: withShippedAndFloor,
		figures: []figure{{name: "CPU", unit: nanoseconds, goal: ofShipped(0.7)}, {name: "on the wall", unit: nanoseconds, goal: noGoal()}},
		open:    ready{repeats: 5, options: plain}.open,
	}, {
		name: "time to ready, an index of a field, per object", subjects: withShippedAndFloor,
		figures: []figure{{name: "CPU", unit: nanoseconds, goal: ofShipped(1)}, {name: "on the wall", unit: nanoseconds, goal: noGoal()}},
		open:    ready{repeats: 5, options: nodeIndex}.open,
	}, {
		name: "time to ready, two indexes of labels to one of a field, per object", subjects: withShippedAndFloor,
		figures: []figure{{name: "CPU", unit: nanoseconds, goal: ofShipped(1)}, {name: "on the wall", unit: nanoseconds, goal: noGoal()}},
		open:    ready{repeats: 5, options: ourLabelsAndNode}.open,
	}, {
		name: "time to ready from etcd, per object", subjects: withShippedAndFloor,
		figures: []figure{
			{name: "CPU", unit: nanoseconds, goal: noGoal()},
			{name: "on the wall", unit: nanoseconds, goal: ofShipped(0.7)},
			{name: "peak of the heap in use, to what stays", unit: ratio, goal: goal{most: 1.3, byMedian: true}},
			{name: "peak of the heap with garbage, to what stays", unit: ratio, goal: noGoal()},
		},
		open: openReadyFromEtcd,
	}}
}

func (m ready) open(_ context.Context, s size) (*work, error) {
	pods := makePods(s.objects)
	for _, pod := range pods {
		pod.Labels[podNameLabel] = pod.Name
	}
	n := s.of(m.repeats, s.repeats)
	return fresh(func(ctx context.Context, sub subject) ([]float64, error) {
		return timed(n*len(pods), func() error {
			if sub == floor {
				return m.describe(n, pods)
			}
			for range n {
				c, err := open(ctx, sub, newBackend(pods), m.options(sub))
				if err != nil {
					return err
				}
				err = readOne(ctx, c, pods)
				c.close()
				if err != nil {
					return err
				}
			}
			return nil
		})
	}), nil
}

// describe computes the key and the attributes of each object, which every
// cache must.
func (m ready) describe(n int, pods []*corev1.Pod) error {
	for i := range n * len(pods) {
		pod := pods[i%len(pods)]
		if _, err := podKey(pod); err != nil {
			return err
		}
		if _, _, err := podAttrs(pod); err != nil {
			return err
		}
	}
	return nil
}

// timed returns what each of n repetitions in f takes, of CPU time and on the wall,
// in nanoseconds.
func timed(n int, f func() error) ([]float64, error) {
	began := time.Now()
	each, err := cost(n, f)
	return []float64{each, float64(time.Since(began)) / float64(n)}, err
}

// inEtcd is Pods in an etcd that is a process of its own, whose CPU time and memory
// do not count.
type inEtcd struct {
	n       int
	server  *ownEtcd
	backend *etcd3.Backend
	codec   apiruntime.Codec
}

func openReadyFromEtcd(ctx context.Context, s size) (_ *work, err error) {
	e := &inEtcd{n: s.objects}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if e.server, err = startEtcd(ctx); err != nil {
		return nil, err
	}
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if e.backend, err = etcd3.Open(starting, etcd3.Config{Endpoints: e.server.Endpoints(), Prefix: "/registry"}); err != nil {
		return nil, err
	}
	if e.codec, err = storedPods(); err != nil {
		return nil, err
	}
	if err := e.fill(ctx); err != nil {
		return nil, fmt.Errorf("writing %d Pods: %w", e.n, err)
	}
	return &work{measure: e.measure, close: e.close}, nil
}

// storedPods returns the codec that a kube-apiserver stores Pods with, without
// internal types.
func storedPods() (apiruntime.Codec, error) {
	scheme := apiruntime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	codecs := serializer.NewCodecFactory(scheme)
	info, ok := apiruntime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), apiruntime.ContentTypeProtobuf)
	if !ok {
		return nil, errors.New("there is no protobuf")
	}
	return codecs.CodecForVersions(info.Serializer, codecs.UniversalDeserializer(), corev1.SchemeGroupVersion, corev1.SchemeGroupVersion), nil
}

// storage returns a storage of the Pods, which a cache has for itself.
func (e *inEtcd) storage() (storage.Interface, error) {
	return e.backend.Storage(etcd3.ResourceConfig{
		GroupResource: podResource, ResourcePrefix: prefix, Codec: e.codec, NewFunc: newPod, NewListFunc: newPodList,
	})
}

func (e *inEtcd) close() error {
	var errs []error
	if e.backend != nil {
		errs = append(errs, e.backend.Close())
	}
	if e.server != nil {
		errs = append(errs, e.server.close())
	}
	return errors.Join(errs...)
}

// perWrite is how many Pods are written in one transaction, etcd's default limit.
const perWrite = 128

func (e *inEtcd) fill(ctx context.Context) error {
	client, err := e.server.client()
	if err != nil {
		return err
	}
	defer client.Close()
	pods := makePods(e.n)
	group, writing := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for first := 0; first < len(pods) && writing.Err() == nil; first += perWrite {
		group.Go(func() error {
			var puts []clientv3.Op
			for _, pod := range pods[first:min(first+perWrite, len(pods))] {
				key, err := podKey(pod)
				if err != nil {
					return err
				}
				pod.ResourceVersion = "" // as storage writes it
				encoded, err := apiruntime.Encode(e.codec, pod)
				if err != nil {
					return err
				}
				puts = append(puts, clientv3.OpPut("/registry"+key, string(encoded)))
			}
			_, err := client.Txn(writing).Then(puts...).Commit()
			return err
		})
	}
	return errors.Join(group.Wait(), ctx.Err())
}

// measure fills a cache twice: once for time and the heap with its garbage, and once
// with a collector that runs so often that there is little of that.
func (e *inEtcd) measure(ctx context.Context, sub subject) ([]float64, error) {
	var figures []float64
	before, _ := memory()
	withGarbage, err := e.peak(before, func() (held func(), err error) {
		figures, err = timed(e.n, func() error {
			held, err = e.take(ctx, sub)
			return err
		})
		return held, err
	})
	if err != nil {
		return nil, err
	}
	defer debug.SetGCPercent(debug.SetGCPercent(5))
	before, _ = memory()
	inUse, err := e.peak(before, func() (func(), error) { return e.take(ctx, sub) })
	return append(figures, inUse, withGarbage), err
}

// take takes the whole state, and keeps it until the function is called that take
// returns. The floor lists and decodes it in pages.
func (e *inEtcd) take(ctx context.Context, sub subject) (release func(), err error) {
	pods, err := e.storage()
	if err != nil {
		return nil, err
	}
	if sub != floor {
		c, err := open(ctx, sub, newBackend(nil), cacheOptions{over: pods})
		if err != nil {
			return nil, err
		}
		if err := e.complete(ctx, c); err != nil {
			c.close()
			return nil, err
		}
		return func() {
			c.close()
			closeStorage(pods) // its estimator of sizes has the cache
		}, nil
	}
	var lists []*corev1.PodList
	for next := ""; ; {
		list := &corev1.PodList{}
		p := storage.Everything
		p.Limit, p.Continue = 10_000, next
		if err := pods.GetList(ctx, prefix, storage.ListOptions{Predicate: p, Recursive: true}, list); err != nil {
			return nil, err
		}
		lists = append(lists, list)
		if next = list.Continue; next == "" {
			return func() {
				clear(lists)
				closeStorage(pods)
			}, nil
		}
	}
}

func closeStorage(s storage.Interface) {
	if s, ok := s.(interface{ Close() }); ok {
		s.Close()
	}
}

// complete fails unless the cache answers a LIST of one namespace with all of it.
func (e *inEtcd) complete(ctx context.Context, c *cached) error {
	var list corev1.PodList
	err := c.GetList(ctx, prefix+namespaceName(42)+"/", storage.ListOptions{
		ResourceVersion: "0", Predicate: storage.Everything, Recursive: true,
	}, &list)
	if err == nil && len(list.Items) != e.n/namespaces {
		err = fmt.Errorf("%d Pods of a namespace are in the cache, want %d", len(list.Items), e.n/namespaces)
	}
	return err
}

// heapSample is how much memory the objects on the heap take, garbage included.
const heapSample = "/memory/classes/heap/objects:bytes"

// peak returns the largest heap while f runs, to that which stays, both without what
// there was before.
func (e *inEtcd) peak(before float64, f func() (func(), error)) (float64, error) {
	stop, most := make(chan struct{}), make(chan uint64)
	go func() {
		sample := []metrics.Sample{{Name: heapSample}}
		ticker := time.NewTicker(2 * time.Millisecond)
		defer ticker.Stop()
		highest := uint64(0)
		for {
			metrics.Read(sample)
			highest = max(highest, sample[0].Value.Uint64())
			select {
			case <-ticker.C:
			case <-stop:
				most <- highest
				return
			}
		}
	}()
	release, err := f()
	close(stop)
	highest := <-most
	if err != nil {
		return 0, err
	}
	after, _ := memory()
	release()
	return (float64(highest) - before) / (after - before), nil
}
