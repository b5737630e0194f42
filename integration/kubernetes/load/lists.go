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
		took map[string][]listed
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
	l.mu.took = map[string][]listed{}
	for range l.kinds {
		c, err := own(config)
		if err != nil {
			return nil, err
		}
		l.clients = append(l.clients, c)
	}
	return l, nil
}

// run lists until ctx ends. A LIST that fails, because the server is away, is not counted.
func (l *lister) run(ctx context.Context) error {
	var all group
	for i, kind := range l.kinds {
		all.run(func() {}, func() error {
			tick := time.NewTicker(kind.every)
			defer tick.Stop()
			for turn := 0; ; turn++ {
				at := time.Now()
				if _, err := l.clients[i].CoreV1().Pods(corev1.NamespaceAll).List(ctx, kind.options(turn)); err == nil {
					l.mu.Lock()
					l.mu.took[kind.name] = append(l.mu.took[kind.name], listed{at, time.Since(at)})
					l.mu.Unlock()
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

func (l *lister) figures(p *Phase) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, kind := range l.kinds {
		var took []time.Duration
		for _, one := range l.mu.took[kind.name] {
			if p.has(one.at) {
				took = append(took, one.took)
			}
		}
		p.quantiles(kind.name, took)
	}
}
