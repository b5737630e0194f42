// SPDX-License-Identifier: Apache-2.0

//go:build unix

package load

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	probeName = "probe"
	// probeEvery is how often the probe is changed.
	probeEvery = 100 * time.Millisecond
	// writtenKey is the annotation with the time of a change, in nanoseconds.
	writtenKey = "written"
)

// probe is a pod that nobody schedules, which is changed all the time.
type probe struct {
	client     kubernetes.Interface
	all, named observer
}

// own returns a client with a connection of its own.
func own(config *rest.Config) (kubernetes.Interface, error) {
	config = rest.CopyConfig(config)
	config.Dial = (&net.Dialer{Timeout: 5 * time.Second}).DialContext
	return kubernetes.NewForConfig(config)
}

func newProbe(ctx context.Context, config *rest.Config) (p *probe, err error) {
	p = &probe{}
	for _, c := range []*kubernetes.Interface{&p.client, &p.all.client, &p.named.client} {
		if *c, err = own(config); err != nil {
			return nil, err
		}
	}
	p.named.selector = "metadata.name=" + probeName
	_, err = p.client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: probeName},
		Spec:       corev1.PodSpec{SchedulerName: "none", Containers: []corev1.Container{{Name: "main", Image: "registry.example.com/probe:1"}}},
	}, metav1.CreateOptions{})
	return p, err
}

// write changes the probe until ctx ends. A change that fails, because the server is
// away, is given up.
func (p *probe) write(ctx context.Context) error {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, writtenKey, time.Now().UnixNano())
		_, _ = p.client.CoreV1().Pods(namespace).Patch(ctx, probeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// await returns when both observers hear of changes soon. The first LIST of all pods takes
// seconds, in which changes grow old.
func (p *probe) await(ctx context.Context) error {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for !p.all.follows() || !p.named.follows() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (p *probe) figures(phase *Phase) {
	p.all.figures(phase, "observer of all pods")
	p.named.figures(phase, "observer of one pod")
}

// observer watches pods, and notes how old the changes of the probe are when it hears
// of them.
type observer struct {
	client   kubernetes.Interface
	selector string

	mu struct {
		sync.Mutex
		heard []heard
		gone  []time.Time // 410s
	}
}

type heard struct {
	written time.Time
	after   time.Duration
}

// observe watches until ctx ends. A watch that ends is resumed at once, from the last
// version that was seen, or, after a 410, from the present.
func (o *observer) observe(ctx context.Context) error {
	version := ""
	for ctx.Err() == nil {
		var err error
		if version, err = o.watch(ctx, version); apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			o.mu.Lock()
			o.mu.gone = append(o.mu.gone, time.Now())
			o.mu.Unlock()
			version = ""
		}
		if err != nil {
			select { // the server is away
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return nil
}

// watch returns the last version that it saw.
func (o *observer) watch(ctx context.Context, version string) (string, error) {
	pods := o.client.CoreV1().Pods(corev1.NamespaceAll)
	options := metav1.ListOptions{FieldSelector: o.selector, ResourceVersion: version, AllowWatchBookmarks: true}
	if version == "" {
		list, err := pods.List(ctx, metav1.ListOptions{FieldSelector: o.selector})
		if err != nil {
			return "", err
		}
		options.ResourceVersion = list.ResourceVersion
		version = list.ResourceVersion
	}
	w, err := pods.Watch(ctx, options)
	if err != nil {
		return version, err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			return version, apierrors.FromObject(event.Object)
		}
		pod, ok := event.Object.(*corev1.Pod)
		if !ok {
			return version, fmt.Errorf("a watch of pods brought %T", event.Object)
		}
		version = pod.ResourceVersion
		if event.Type == watch.Modified && pod.Name == probeName && pod.Namespace == namespace {
			o.note(pod.Annotations[writtenKey])
		}
	}
	return version, nil
}

func (o *observer) follows() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := len(o.mu.heard)
	return n > 0 && o.mu.heard[n-1].after < time.Second
}

func (o *observer) note(annotation string) {
	now := time.Now()
	var nanoseconds int64
	if _, err := fmt.Sscan(annotation, &nanoseconds); err != nil {
		return
	}
	written := time.Unix(0, nanoseconds)
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.mu.heard); n > 0 && !o.mu.heard[n-1].written.Before(written) {
		return // the same change once more, after a relist
	}
	o.mu.heard = append(o.mu.heard, heard{written, now.Sub(written)})
}

func (o *observer) figures(p *Phase, name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var after []time.Duration
	for _, h := range o.mu.heard {
		if p.has(h.written) {
			after = append(after, h.after)
		}
	}
	p.quantiles(name, after)
	p.Figures["observers gone"] += 0 // a row, if there are none
	for _, at := range o.mu.gone {
		if p.has(at) {
			p.Figures["observers gone"]++
		}
	}
}
