// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/metrics"
)

// dispatchObjects is how many objects the cache holds while events are
// measured, at most.
const dispatchObjects = 1000

// dispatch measures what one event costs at a fixed rate. Watchers and events
// are of classes, in turn; an event matches the watchers of its class.
type dispatch struct {
	watchers, classes int
	rate              int // events per second
	// selector returns the label and the field selector of a watcher.
	selector func(watcher, class int) (label, field string)
	// mark makes a Pod one of a class.
	mark func(pod *corev1.Pod, class int)
	// candidates: count the groups of watchers that our index names for an event.
	candidates bool
}

// byLabel and byNode are ways to select a class.
func byLabel(_, class int) (label, field string) { return appLabel + "=" + appName(class), "" }

// byLabelAlone is byLabel with a selector that no two watchers share.
func byLabelAlone(watcher, class int) (label, field string) {
	return fmt.Sprintf("%s=%s,owner!=o%d", appLabel, appName(class), watcher), ""
}

func byNode(_, class int) (label, field string) {
	return "", "spec.nodeName=node-" + strconv.Itoa(class)
}

func byNothing(int, int) (label, field string) { return "", "" }

func markLabel(pod *corev1.Pod, class int) {
	pod.Labels = map[string]string{appLabel: appName(class), "tier": "backend", "release": "stable"}
}

func markNode(pod *corev1.Pod, class int) { pod.Spec.NodeName = "node-" + strconv.Itoa(class) }

func markNothing(*corev1.Pod, int) {}

func (d dispatch) open(_ context.Context, s size) (*work, error) {
	if d.watchers > 0 {
		d.watchers = s.of(d.watchers, s.watchers)
		d.classes = min(d.classes, d.watchers)
	}
	events := max(1, int(float64(d.rate)*s.seconds))
	pods := makePods(min(s.objects, dispatchObjects))
	for i, pod := range pods {
		d.mark(pod, i%d.classes)
	}
	// Pod i is of class i: an update leaves it there, and watchers see MODIFIED.
	perPod := len(pods) / d.classes * d.classes
	if perPod == 0 {
		return nil, fmt.Errorf("%d objects are too few for %d classes", len(pods), d.classes)
	}
	writes := updates(pods, events)
	for i, pod := range writes {
		*pod = *pods[i%perPod]
		pod.ResourceVersion = strconv.Itoa(len(pods) + i + 1)
	}
	return fresh(func(ctx context.Context, sub subject) ([]float64, error) {
		if sub == floor {
			return d.measureFloor(ctx, s, writes)
		}
		return d.measureCache(ctx, s, sub, pods, writes)
	}), nil
}

// want is how many of the first events a watcher of a class is to get.
func (d dispatch) want(events, class int) int {
	return max(0, events-class+d.classes-1) / d.classes
}

func (d dispatch) measureCache(ctx context.Context, s size, sub subject, pods, writes []*corev1.Pod) ([]float64, error) {
	b := newBackend(pods)
	c, err := open(ctx, sub, b, cacheOptions{})
	if err != nil {
		return nil, err
	}
	defer c.close()
	figures, err := d.measureOn(ctx, s, c, writes, func(i int) error { return b.emit(writes[i]) })
	switch {
	case err != nil || !d.candidates:
		return figures, err
	case sub != ours:
		return append(figures, math.NaN()), nil
	}
	candidates, err := c.count(string(metrics.NameEvaluations))
	return append(figures, candidates/float64(len(writes))), err
}

// measureFloor sends each event straight to the channels of its class.
func (d dispatch) measureFloor(ctx context.Context, s size, writes []*corev1.Pod) ([]float64, error) {
	f := &fan{channels: make([][]chan watch.Event, d.classes)}
	figures, err := d.measureOn(ctx, s, f, writes, func(i int) error {
		for _, channel := range f.channels[i%d.classes] {
			channel <- watch.Event{Type: watch.Modified, Object: writes[i]}
		}
		return nil
	})
	if d.candidates {
		figures = append(figures, math.NaN())
	}
	return figures, err
}

// measureOn opens all watches and returns the CPU time of one event: all of
// it, and all of it but what waking up at that rate takes.
func (d dispatch) measureOn(ctx context.Context, s size, on watcher, writes []*corev1.Pod, emit func(i int) error) ([]float64, error) {
	a := &watchClients{}
	defer a.leave()
	for i := range d.watchers {
		class := i % d.classes
		p, err := predicate(d.selector(i, class))
		if err != nil {
			return nil, err
		}
		if err := a.join(on, watchRequest{
			ctx: ctx, key: prefix, want: d.want(len(writes), class),
			opts: storage.ListOptions{ResourceVersion: newest(writes), Predicate: p, Recursive: true},
		}); err != nil {
			return nil, err
		}
	}
	if err := settle(ctx); err != nil {
		return nil, err
	}
	runtime.GC()
	all, pacing, err := d.spend(ctx, s, a, len(writes), emit)
	if err != nil {
		return nil, err
	}
	a.leave()
	closed, err := a.complete()
	n := float64(len(writes))
	if closed > d.watchers/100 {
		all = math.NaN() // the work was not done
	}
	return []float64{(all - pacing) / n, all / n, float64(closed)}, err
}

// rounds is how often events, and waking up without them, are measured in turn.
const rounds = 4

// spend returns the CPU time of all events until they have arrived, and that of
// only waking up as often.
func (d dispatch) spend(ctx context.Context, s size, a *watchClients, events int, emit func(i int) error) (all, pacing float64, err error) {
	for round := range rounds {
		from, to := events*round/rounds, events*(round+1)/rounds
		woken, err := cost(1, func() error {
			return pace(ctx, d.rate, to-from, func(int) error { return nil })
		})
		if err != nil {
			return 0, 0, err
		}
		spent, err := cost(1, func() error {
			if err := pace(ctx, d.rate, to-from, func(i int) error { return emit(from + i) }); err != nil {
				return err
			}
			return a.await(ctx, 10*s.patience, func(i int, _ *client) int { return d.want(to, i%d.classes) })
		})
		if err != nil {
			return 0, 0, err
		}
		all, pacing = all+spent, pacing+woken
	}
	return all, pacing, nil
}

// newest is the resourceVersion just before the first write.
func newest(writes []*corev1.Pod) string {
	first, err := strconv.Atoi(writes[0].ResourceVersion)
	if err != nil {
		panic(err) // updates makes them
	}
	return strconv.Itoa(first - 1)
}

// pace calls emit n times at a rate per second.
func pace(ctx context.Context, rate, n int, emit func(i int) error) error {
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	defer ticker.Stop()
	for i := range n {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := emit(i); err != nil {
			return err
		}
	}
	return nil
}

// fan is what a cache can't be cheaper than: channels by class, in the order
// in which they were asked for, of the size that ours have.
type fan struct {
	channels [][]chan watch.Event
	joined   int
}

func (f *fan) Watch(ctx context.Context, _ string, _ storage.ListOptions) (watch.Interface, error) {
	class := f.joined % len(f.channels)
	f.joined++
	channel := make(chan watch.Event, fanBuffer)
	f.channels[class] = append(f.channels[class], channel)
	w := &fanWatch{channel: channel}
	w.release = context.AfterFunc(ctx, w.close)
	return w, nil
}

// fanBuffer is the size of our watchers' channels.
const fanBuffer = 16

type fanWatch struct {
	channel chan watch.Event
	release func() bool
}

func (w *fanWatch) ResultChan() <-chan watch.Event { return w.channel }

// Stop leaves the closing to the context, which ends as well.
func (w *fanWatch) Stop() {}

func (w *fanWatch) close() { close(w.channel) }
