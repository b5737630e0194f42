// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	corev1 "k8s.io/api/core/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/bench/boundary"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// manyCaches measures what an etcd pays when a server of many resources starts, whose
// caches go back to what etcd has of its history. The floor is ours over a storage
// that keeps no history.
type manyCaches struct {
	resources int
	// objects and revisions are how many there are in all; each revision changes one
	// object, after all were written.
	objects, revisions int
}

// The pace of somebody else's writes meanwhile.
const otherWrites = 10 * time.Millisecond

func manyCachesRows() (rows []row) {
	for _, n := range []int{100, 300} {
		rows = append(rows, row{
			name: fmt.Sprintf("start of %d caches over an etcd with 50,000 revisions", n), subjects: withShippedAndFloor,
			figures: []figure{
				{name: "CPU of etcd", unit: nanoseconds, goal: noGoal()},
				{name: "resident memory of etcd, highest, beyond that before", unit: octets, goal: noGoal()},
				{name: "slowest write of another client", unit: nanoseconds, goal: noGoal()},
				{name: "CPU of the server", unit: nanoseconds, goal: noGoal()},
				{name: "until all are ready", unit: nanoseconds, goal: noGoal()},
				{name: "until all have their history", unit: nanoseconds, goal: noGoal()},
				{name: "caches without history", unit: count, goal: atMost(0)},
			},
			open: manyCaches{resources: n, objects: 10_000, revisions: 50_000}.open,
		})
	}
	return rows
}

// crowded is an etcd with many resources.
type crowded struct {
	manyCaches
	etcd   *ownEtcd
	codec  apiruntime.Codec
	pods   []*corev1.Pod
	oldest uint64 // of the versions that clients may resume from
}

func (m manyCaches) open(ctx context.Context, s size) (*work, error) {
	w, c, err := m.prepare(ctx, s)
	if err != nil {
		return nil, err
	}
	w.measure = c.measure
	return w, nil
}

// prepare returns work that has nothing to measure yet, and the etcd of it.
func (m manyCaches) prepare(ctx context.Context, s size) (_ *work, _ *crowded, err error) {
	m.resources, m.objects, m.revisions = s.of(m.resources, s.watchers), s.of(m.objects, s.watchers), s.of(m.revisions, s.watchers)
	c := &crowded{manyCaches: m}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if c.etcd, err = startEtcd(ctx); err != nil {
		return nil, nil, err
	}
	if c.codec, err = storedPods(); err != nil {
		return nil, nil, err
	}
	c.pods = makePods(max(namespaces, m.objects/namespaces*namespaces))
	if err := c.fill(ctx); err != nil {
		return nil, nil, err
	}
	return &work{close: c.close}, c, nil
}

func (c *crowded) close() error {
	if c.etcd == nil {
		return nil
	}
	return c.etcd.close()
}

func resourceName(i int) string { return fmt.Sprintf("kind-%03d", i) }

// podKeyOf is the key of a Pod among those of the i-th resource.
func podKeyOf(i int, pod *corev1.Pod) string {
	return "/" + resourceName(i) + "/" + pod.Namespace + "/" + pod.Name
}

// fill writes the objects, and then one more revision after the other of them.
func (c *crowded) fill(ctx context.Context) error {
	client, err := c.etcd.client()
	if err != nil {
		return err
	}
	defer client.Close()
	group, writing := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for n := 0; n < len(c.pods)+c.revisions && writing.Err() == nil; n++ {
		if n == len(c.pods) {
			// All objects are there before the first is changed.
			if err := group.Wait(); err != nil {
				return err
			}
			first, err := client.Get(ctx, "/")
			if err != nil {
				return err
			}
			c.oldest = uint64(first.Header.Revision)
			group, writing = errgroup.WithContext(ctx)
			group.SetLimit(16)
		}
		i := n % len(c.pods)
		group.Go(func() error {
			pod := *c.pods[i]
			pod.ResourceVersion = "" // as storage writes it
			pod.Generation = int64(n)
			encoded, err := apiruntime.Encode(c.codec, &pod)
			if err == nil {
				_, err = client.Put(writing, "/registry"+podKeyOf(i%c.resources, &pod), string(encoded))
			}
			return err
		})
	}
	if err := errors.Join(group.Wait(), ctx.Err()); err != nil {
		return fmt.Errorf("writing %d Pods: %w", len(c.pods), err)
	}
	return nil
}

// withoutHistory is a storage that keeps no history, as far as a cache is told.
type withoutHistory struct{ storage.Interface }

func (withoutHistory) WatchProgress() bool { return true }

func (c *crowded) resource(i int) (resource, error) {
	codec, err := podCodec()
	return resource{
		name: schema.GroupResource{Resource: resourceName(i)}, prefix: "/" + resourceName(i) + "/",
		key:   func(object apiruntime.Object) (string, error) { return podKeyOf(i, object.(*corev1.Pod)), nil },
		attrs: podAttrs, object: newPod, newList: newPodList, codec: codec,
	}, err
}

// measure starts etcd again, so that its highest memory is that of the caches, and
// then all caches.
func (c *crowded) measure(ctx context.Context, sub subject) (_ []float64, err error) {
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := errors.Join(c.etcd.Stop(starting), c.etcd.Restart(starting)); err != nil {
		return nil, err
	}
	backend, err := etcd3.Open(starting, etcd3.Config{Endpoints: c.etcd.Endpoints(), Prefix: "/registry"})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, backend.Close()) }()
	w, err := c.write(ctx)
	if err != nil {
		return nil, err
	}
	if err := sleep(ctx, time.Second); err != nil { // the first writes open what etcd needs for them
		return nil, err
	}
	w.slowest()
	spent, resident, _ := c.used()
	began, own := time.Now(), cpuTime()
	caches, waits, err := c.start(sub, func(r resource) (storage.Interface, error) {
		over, err := c.over(backend, r)
		if sub == floor && err == nil {
			over = withoutHistory{over}
		}
		return over, err
	})
	defer func() {
		for _, cache := range caches {
			cache.close()
		}
	}()
	if err != nil {
		return nil, err
	}
	for _, wait := range waits {
		if err := wait(ctx); err != nil {
			return nil, err
		}
	}
	ready := time.Since(began)
	missing, err := c.resumed(ctx, caches)
	if err != nil {
		return nil, err
	}
	recalled := time.Since(began)
	own = cpuTime() - own
	cpu, _, highest := c.used()
	slowest := w.slowest()
	return []float64{
		cpu - spent, highest - resident, float64(slowest), float64(own), float64(ready), float64(recalled), float64(missing),
	}, w.end()
}

// used is the CPU time that etcd has spent, and what it takes of memory and has taken
// at most; NaN where the system does not tell.
func (c *crowded) used() (cpu, resident, highest float64) {
	spent, err := boundary.ProcessCPU(c.etcd.PID())
	if err != nil {
		return math.NaN(), math.NaN(), math.NaN()
	}
	memory, err := boundary.ProcessMemory(c.etcd.PID())
	if err != nil {
		return float64(spent), math.NaN(), math.NaN()
	}
	return float64(spent), float64(memory.Resident), float64(memory.Highest)
}

// over returns our storage of a resource.
func (c *crowded) over(backend *etcd3.Backend, r resource) (storage.Interface, error) {
	return backend.Storage(etcd3.ResourceConfig{
		GroupResource: r.name, ResourcePrefix: r.prefix, Codec: c.codec, NewFunc: newPod, NewListFunc: newPodList,
	})
}

// start starts a cache for each resource, which are not ready yet.
func (c *crowded) start(sub subject, over func(resource) (storage.Interface, error)) (caches []*cached, waits []func(context.Context) error, err error) {
	begin := startOurs
	if sub == shipped {
		begin = startShipped
	}
	for i := range c.resources {
		r, err := c.resource(i)
		if err != nil {
			return caches, nil, err
		}
		under, err := over(r)
		if err != nil {
			return caches, nil, err
		}
		cache, wait, err := begin(newBackend(nil), r, cacheOptions{over: under})
		if err != nil {
			return caches, nil, err
		}
		caches, waits = append(caches, cache), append(waits, wait)
	}
	return caches, waits, nil
}

// resumed opens a watch of each cache from before most of the revisions, and returns
// how many caches refuse that.
func (c *crowded) resumed(ctx context.Context, caches []*cached) (refused int, err error) {
	after := strconv.FormatUint(c.oldest+uint64(c.revisions)/50, 10)
	for i, cache := range caches {
		w, err := cache.Watch(ctx, "/"+resourceName(i)+"/", storage.ListOptions{ResourceVersion: after, Predicate: storage.Everything, Recursive: true})
		if err != nil {
			refused++ // the shipped cacher
			continue
		}
		select {
		case event := <-w.ResultChan():
			if event.Type == watch.Error {
				refused++
			}
		case <-ctx.Done():
			err = ctx.Err()
		}
		w.Stop()
		if err != nil {
			return 0, err
		}
	}
	return refused, nil
}

// writing is somebody who writes to etcd, and how long that takes. Its goroutine
// ends with end, which awaits it.
type writing struct {
	cancel context.CancelFunc
	took   chan []time.Duration
	done   chan error
}

func (c *crowded) write(ctx context.Context) (*writing, error) {
	client, err := c.etcd.client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &writing{cancel: cancel, took: make(chan []time.Duration), done: make(chan error, 1)}
	go func() {
		defer client.Close()
		ticker := time.NewTicker(otherWrites)
		defer ticker.Stop()
		var took []time.Duration
		for {
			select {
			case w.took <- took:
				took = nil
			case <-ctx.Done():
				w.done <- nil
				return
			case <-ticker.C:
				begun := time.Now()
				if _, err := client.Put(ctx, "/other", begun.String()); err != nil && ctx.Err() == nil {
					w.done <- err
					return
				}
				took = append(took, time.Since(begun))
			}
		}
	}()
	return w, nil
}

// slowest returns the longest write since it was last called.
func (w *writing) slowest() time.Duration {
	select {
	case took := <-w.took:
		if len(took) == 0 {
			return 0
		}
		return slices.MaxFunc(took, cmp.Compare[time.Duration])
	case err := <-w.done:
		w.done <- err
		return 0
	}
}

// end ends the writes and returns why they failed.
func (w *writing) end() error {
	w.cancel()
	return <-w.done
}
