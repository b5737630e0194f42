// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	shippedcacher "k8s.io/apiserver/pkg/storage/cacher"
	shippedmetrics "k8s.io/apiserver/pkg/storage/cacher/metrics"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/keptlists"
	"github.com/kube-watchcache/watchcache/internal/realistic"
	"github.com/kube-watchcache/watchcache/metrics"
)

// historyWindow is for how long both keep events; the shipped one does not
// take less.
const historyWindow = 75 * time.Second

// cached is a cache over a backend of its own.
type cached struct {
	storage.Interface
	subject subject
	backend *backend
	// stop stops the cache, and may hang if the cache does.
	stop func()
	// gathered has our metrics; nil for the shipped cacher.
	gathered prometheus.Gatherer
}

// hangs is after what time a shipped cacher is left behind that does not stop.
const hangs = 5 * time.Second

// close stops the cache. Ours must not hang, so it is waited for.
func (c *cached) close() {
	if c.subject == ours {
		c.stop()
		return
	}
	stopWithin(c, hangs)
}

// cacheOptions are what a resource's author may choose.
type cacheOptions struct {
	labels    []string // keep indexes of them
	nodeIndex bool     // keep an index of the nodes' names
	adaptive  int      // as cacher.Config.AdaptiveIndexes
	// over is the storage, nil: the backend.
	over storage.Interface
	// kind is what is cached, nil: the Pods of pods.go.
	kind *realistic.Kind
}

// resource is what both caches are told about their objects.
type resource struct {
	name            schema.GroupResource
	prefix          string
	key             func(runtime.Object) (string, error)
	attrs           storage.AttrFunc
	object, newList func() runtime.Object
	codec           runtime.Codec
}

func (o cacheOptions) resource() (resource, error) {
	if k := o.kind; k != nil {
		return resource{k.Resource, realistic.Prefix, realistic.Key, k.Attrs, k.New, k.NewList, k.Codec}, nil
	}
	codec, err := podCodec()
	return resource{podResource, prefix, podKey, podAttrs, newPod, newPodList, codec}, err
}

// labelsOf returns the function that indexes Pods by a label.
func labelsOf(name string) cache.IndexFunc {
	return func(obj any) ([]string, error) {
		labels, _, err := podAttrs(obj.(runtime.Object))
		if value, ok := labels[name]; ok && err == nil {
			return []string{value}, nil
		}
		return nil, err
	}
}

func nodeName(obj any) ([]string, error) { return []string{obj.(*corev1.Pod).Spec.NodeName}, nil }

// storage returns what the cache is over.
func (o cacheOptions) storage(b *backend) storage.Interface {
	if o.over != nil {
		return o.over
	}
	return b
}

// start starts a cache, which is not ready yet.
func start(s subject, b *backend, o cacheOptions) (c *cached, wait func(context.Context) error, err error) {
	r, err := o.resource()
	if err != nil {
		return nil, nil, err
	}
	switch s {
	case ours:
		return startOurs(b, r, o)
	case shipped:
		return startShipped(b, r, o)
	}
	return nil, nil, fmt.Errorf("%q is no cache", s)
}

// readyWithin is the maximum time until a cache is ready.
const readyWithin = 2 * time.Minute

// open starts a cache and waits until it is ready.
func open(ctx context.Context, s subject, b *backend, o cacheOptions) (*cached, error) {
	c, wait, err := start(s, b, o)
	if err != nil {
		return nil, err
	}
	late := fmt.Errorf("the cache (%s) was not ready within %v", s, readyWithin)
	waiting, cancel := context.WithTimeoutCause(ctx, readyWithin, late)
	defer cancel()
	if err := wait(waiting); err != nil {
		c.close()
		return nil, errors.Join(err, context.Cause(waiting))
	}
	return c, nil
}

// side holds caches over the same objects that are open at the same time, so
// that each has the same heap beside it to be collected.
type side map[subject]*cached

// sideBySide opens ours and the shipped cacher.
func sideBySide(ctx context.Context, pods []*corev1.Pod, roundTrip time.Duration, options func(subject) cacheOptions) (side, error) {
	caches := side{}
	for _, sub := range []subject{ours, shipped} {
		b := newBackend(pods)
		b.roundTrip = roundTrip
		c, err := open(ctx, sub, b, options(sub))
		if err != nil {
			return nil, errors.Join(err, caches.close())
		}
		caches[sub] = c
	}
	return caches, nil
}

func (s side) close() error {
	for _, c := range s {
		c.close()
	}
	return nil
}

func plain(subject) cacheOptions { return cacheOptions{} }

func startOurs(b *backend, r resource, o cacheOptions) (*cached, func(context.Context) error, error) {
	registry := prometheus.NewRegistry()
	m, err := metrics.New(registry)
	if err != nil {
		return nil, nil, err
	}
	config := cacher.Config{
		Storage: o.storage(b), Versioner: b.versioner, GroupResource: r.name, EventsHistoryWindow: historyWindow,
		ResourcePrefix: r.prefix, KeyFunc: r.key, GetAttrsFunc: r.attrs,
		NewFunc: r.object, NewListFunc: r.newList, Codec: r.codec, Metrics: m, Lists: new(keptlists.Encoder),
	}
	config.LabelIndexes, config.AdaptiveIndexes = o.labels, o.adaptive
	if o.nodeIndex {
		config.Indexers = &cache.Indexers{storage.FieldIndex("spec.nodeName"): nodeName}
	}
	c, err := cacher.New(config)
	if err != nil {
		return nil, nil, err
	}
	return &cached{Interface: c, subject: ours, backend: b, stop: c.Stop, gathered: registry}, c.Wait, nil
}

func startShipped(b *backend, r resource, o cacheOptions) (*cached, func(context.Context) error, error) {
	config := shippedcacher.Config{
		Storage: o.storage(b), Versioner: b.versioner, GroupResource: r.name, EventsHistoryWindow: historyWindow,
		ResourcePrefix: r.prefix, KeyFunc: r.key, GetAttrsFunc: r.attrs,
		NewFunc: r.object, NewListFunc: r.newList, Codec: r.codec,
	}
	indexers := cache.Indexers{}
	if o.nodeIndex {
		indexers[storage.FieldIndex("spec.nodeName")] = nodeName
	}
	for _, label := range o.labels {
		indexers[storage.LabelIndex(label)] = labelsOf(label)
	}
	if len(indexers) > 0 {
		config.Indexers = &indexers
	}
	c, err := shippedcacher.NewCacherFromConfig(config)
	if err != nil {
		return nil, nil, err
	}
	delegator := shippedcacher.NewCacheDelegator(c, o.storage(b))
	var once sync.Once
	stop := func() {
		once.Do(func() {
			delegator.Stop()
			c.Stop()
		})
	}
	return &cached{Interface: delegator, subject: shipped, backend: b, stop: stop}, c.Wait, nil
}

// count returns the value of one of our counters.
func (c *cached) count(name string) (float64, error) {
	families, err := c.gathered.Gather()
	if err != nil {
		return 0, err
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		sum := 0.0
		for _, m := range family.GetMetric() {
			sum += m.GetCounter().GetValue()
		}
		return sum, nil
	}
	return 0, fmt.Errorf("there is no metric %s", name)
}

// prepareShipped makes the shipped cacher's surroundings those of an API
// server: its metrics are registered, and etcd reports progress. The checker
// in request asks etcd's client, which there is none of.
func prepareShipped() {
	shippedmetrics.Register()
	etcdfeature.DefaultFeatureSupportChecker = progressSupported{etcdfeature.DefaultFeatureSupportChecker}
}

// progressSupported says that progress requests are supported.
type progressSupported struct {
	etcdfeature.FeatureSupportChecker
}

func (progressSupported) Supports(f storage.Feature) bool { return f == storage.RequestWatchProgress }
