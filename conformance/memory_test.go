// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"flag"
	"io"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"github.com/kube-watchcache/watchcache/internal/memstore"
)

// The libraries' logs while backends misbehave are shown only with -v.
func TestMain(m *testing.M) {
	flag.Parse()
	if !testing.Verbose() {
		klog.LogToStderr(false)
		klog.SetOutput(io.Discard)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(os.Exit))
}

// memory is a storage that keeps every rule of ours.
type memory struct{ *memstore.Store }

func newMemory() memory { return memory{memstore.New(Prefix, NewPod)} }

func (m memory) backend(s storage.Interface) Backend {
	return Backend{
		Storage:       s,
		WatchProgress: m.WatchProgress,
		Compact:       func(_ context.Context, rv uint64) error { m.Compact(rv); return nil },
		Touch:         func(context.Context) (uint64, error) { return m.Touch(), nil },
	}
}

// altered is a watch whose events are changed on their way. Its goroutine ends
// when it is stopped and the inner watch has ended.
type altered struct {
	watch.Interface
	result chan watch.Event
	done   chan struct{}
}

func alter(w watch.Interface, change func(watch.Event) []watch.Event) watch.Interface {
	a := &altered{Interface: w, result: make(chan watch.Event), done: make(chan struct{}, 1)}
	go func() {
		defer close(a.result)
		for e := range w.ResultChan() {
			for _, e := range change(e) {
				select {
				case a.result <- e:
				case <-a.done:
					a.done <- struct{}{}
				}
			}
		}
	}()
	return a
}

// ResultChan implements watch.Interface.
func (a *altered) ResultChan() <-chan watch.Event { return a.result }

// Stop implements watch.Interface.
func (a *altered) Stop() {
	a.Interface.Stop()
	select {
	case a.done <- struct{}{}:
	default:
	}
}

// TestMemory holds the clauses of ours against a storage that is known to be
// right: what they say of others is then not of their own making.
func TestMemory(t *testing.T) {
	r := &runner{test: t.Name(), all: ours(), open: func(*testing.T) Backend {
		m := newMemory()
		return m.backend(m)
	}}
	r.run(t)
	assert.NotZero(t, r.mu.hold, "not everything was judged: %s", r.report())
	assert.Empty(t, r.mu.skipped, "not everything was judged: %s", r.report())
}

// ours returns the clauses that are not suites of k8s.io/apiserver.
func ours() (out []group) {
	for _, g := range groups() {
		var own []clause
		for _, c := range g.clauses {
			if c.rule != suiteRule {
				own = append(own, c)
			}
		}
		out = append(out, group{g.name, own})
	}
	return out
}
