// SPDX-License-Identifier: Apache-2.0

//go:build unix

package load

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-watchcache/watchcache/integration/kubernetes/nodes"
)

// lister lists pods as clients do.
type lister struct {
	clients []kubernetes.Interface
	kinds   []listing

	mu struct {
		sync.Mutex
		took, leftOut map[string][]listed
	}
}

// listing is a LIST that is sent every so often.
type listing struct {
	name    string
	every   time.Duration
	options func(turn int) metav1.ListOptions
}

type listed struct {
	at   time.Time
	took time.Duration
}

func newLister(config *rest.Config, deployments, nodeCount int) (*lister, error) {
	l := &lister{kinds: []listing{
		{"LIST of a deployment's pods", 100 * time.Millisecond, func(turn int) metav1.ListOptions {
			return metav1.ListOptions{LabelSelector: "app=" + deployment(turn%deployments)}
		}},
		{"LIST of a node's pods, rv=0", 100 * time.Millisecond, func(turn int) metav1.ListOptions {
			return metav1.ListOptions{FieldSelector: "spec.nodeName=" + nodes.Name(turn%nodeCount), ResourceVersion: "0"}
		}},
		{"LIST of all pods, rv=0", 2 * time.Second, func(int) metav1.ListOptions { return metav1.ListOptions{ResourceVersion: "0"} }},
	}}
	l.mu.took, l.mu.leftOut = map[string][]listed{}, map[string][]listed{}
	for range l.kinds {
		c, err := own(config)
		if err != nil {
			return nil, err
		}
		l.clients = append(l.clients, c)
	}
	return l, nil
}

// atOnce is how many LISTs of a kind may be under way.
const atOnce = 16

// run lists until ctx ends, at the times of each kind, whether earlier LISTs have been
// answered or not: of two caches, the faster one must not be asked for more. Each LIST
// that is not sent since too many are under way is counted, and shows that the figures of
// the two can't be compared. One that fails, because the server is away, is not counted.
func (l *lister) run(ctx context.Context) error {
	var all group
	for i, kind := range l.kinds {
		all.run(func() {}, func() error {
			tick := time.NewTicker(kind.every)
			defer tick.Stop()
			room := make(chan struct{}, atOnce)
			for turn := 0; ; turn++ {
				select {
				case room <- struct{}{}:
					all.run(func() {}, func() error {
						defer func() { <-room }()
						l.list(ctx, l.clients[i], kind, turn)
						return nil
					})
				default:
					l.note(l.mu.leftOut, kind, listed{at: time.Now()})
				}
				select {
				case <-ctx.Done():
					return nil
				case <-tick.C:
				}
			}
		})
	}
	return all.wait()
}

func (l *lister) list(ctx context.Context, client kubernetes.Interface, kind listing, turn int) {
	at := time.Now()
	if _, err := client.CoreV1().Pods(corev1.NamespaceAll).List(ctx, kind.options(turn)); err == nil {
		l.note(l.mu.took, kind, listed{at, time.Since(at)})
	}
}

func (l *lister) note(in map[string][]listed, kind listing, one listed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	in[kind.name] = append(in[kind.name], one)
}

func (l *lister) figures(p *Phase) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.Figures["lists left out"] += 0 // a row, if there are none
	for _, kind := range l.kinds {
		var took []time.Duration
		for _, one := range l.mu.took[kind.name] {
			if p.has(one.at) {
				took = append(took, one.took)
			}
		}
		p.quantiles(kind.name, took)
		for _, one := range l.mu.leftOut[kind.name] {
			if p.has(one.at) {
				p.Figures["lists left out"]++
			}
		}
	}
}
