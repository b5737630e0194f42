// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/integration/internal/judge"
)

// outcome is what became of one probe.
type outcome struct {
	begun, ended time.Time
	ok           bool
}

// outcomes are those of probes that may overlap.
type outcomes struct {
	mu  sync.Mutex
	all []outcome
}

func (o *outcomes) note(one outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, one)
}

// figure sums probes up.
type figure struct {
	total, answered int
	// gap is the longest time in which no answer came.
	gap time.Duration
}

// share is how many of the probes were answered in time, in percent.
func (f figure) share() float64 {
	if f.total == 0 {
		return 0
	}
	return 100 * float64(f.answered) / float64(f.total)
}

func (f figure) String() string { return fmt.Sprintf("%.0f %%, %.1f s", f.share(), f.gap.Seconds()) }

// between sums up the probes that began from from to to.
func (o *outcomes) between(from, to time.Time) figure {
	o.mu.Lock()
	defer o.mu.Unlock()
	return measure(o.all, from, to)
}

// measure expects the outcomes in the order in which they ended.
func measure(all []outcome, from, to time.Time) figure {
	var f figure
	last := from
	for _, one := range all {
		if !one.begun.Before(from) && !one.begun.After(to) {
			f.total++
			if one.ok {
				f.answered++
			}
		}
		if one.ok && one.ended.After(from) && !one.ended.After(to) {
			f.gap, last = max(f.gap, one.ended.Sub(last)), one.ended
		}
	}
	f.gap = max(f.gap, to.Sub(last))
	return f
}

// probes read consistently at fixed times, whatever has become of the earlier
// ones.
type probes struct {
	client   *versioned.Clientset
	interval time.Duration
	// read asks once; an answer that there is no such object is an answer.
	read     func(ctx context.Context, client *versioned.Clientset, n int) (judge.Read, error)
	outcomes outcomes
	answers  answers // for the judge
}

func (p *probes) run(ctx context.Context) {
	var under sync.WaitGroup
	defer under.Wait()
	n := 0
	every(ctx, p.interval, func() {
		n++
		this := n
		under.Go(func() { p.probe(ctx, this) })
	})
}

func (p *probes) probe(ctx context.Context, n int) {
	bounded, cancel := context.WithTimeout(ctx, timely)
	defer cancel()
	begun := time.Now()
	answer, err := p.read(bounded, p.client, n)
	if ctx.Err() != nil {
		return
	}
	p.outcomes.note(outcome{begun: begun, ended: time.Now(), ok: err == nil})
	if err == nil {
		answer.Begun, answer.Fresh = begun, true
		p.answers.note(answer)
	}
}

// probeGet gets one object after the other.
func probeGet(ctx context.Context, client *versioned.Clientset, n int) (judge.Read, error) {
	key := keyOf(n % keys)
	namespace, name := splitKey(key)
	answer := judge.Read{Kind: "consistent GET", Key: key}
	device, err := client.FleetV1().Devices(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return answer, nil
	case err != nil:
		return judge.Read{}, err
	}
	got := judge.ItemOf(device)
	answer.RV, answer.Items = got.RV, map[string]judge.Item{key: got}
	return answer, nil
}

// probeList lists all objects.
func probeList(ctx context.Context, client *versioned.Clientset, _ int) (judge.Read, error) {
	list, err := client.FleetV1().Devices("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return judge.Read{}, err
	}
	return judge.Read{Kind: "consistent LIST", RV: judge.Version(list.ResourceVersion), Items: judge.ItemsOf(list)}, nil
}

// healthProbe asks the server how it is.
type healthProbe struct {
	client    *http.Client
	url, path string
	outcomes
}

func (p *healthProbe) run(ctx context.Context) {
	every(ctx, 5*probeInterval, func() {
		bounded, cancel := context.WithTimeout(ctx, timely)
		defer cancel()
		one := outcome{begun: time.Now()}
		request, err := http.NewRequestWithContext(bounded, http.MethodGet, p.url, nil)
		if err != nil {
			return
		}
		response, err := p.client.Do(request)
		if err == nil {
			one.ok = response.StatusCode == http.StatusOK
			_ = response.Body.Close()
		}
		if ctx.Err() == nil {
			one.ended = time.Now()
			p.note(one)
		}
	})
}

// latest reports whether the last probe was answered.
func (o *outcomes) latest() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.all) > 0 && o.all[len(o.all)-1].ok
}

// etcdProbe asks all members for a consistent read and takes the first answer:
// no server can do better.
type etcdProbe struct {
	clients []*clientv3.Client
	outcomes
}

func newEtcdProbe(direct []string) (*etcdProbe, error) {
	p := &etcdProbe{}
	for _, url := range direct {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop()})
		if err != nil {
			return nil, err
		}
		p.clients = append(p.clients, client)
	}
	return p, nil
}

func (p *etcdProbe) close() {
	for _, client := range p.clients {
		_ = client.Close()
	}
}

func (p *etcdProbe) run(ctx context.Context) {
	var under sync.WaitGroup
	defer under.Wait()
	every(ctx, 2*probeInterval, func() { under.Go(func() { p.probe(ctx) }) })
}

func (p *etcdProbe) probe(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, timely)
	defer cancel()
	one, answers := outcome{begun: time.Now()}, make(chan error, len(p.clients))
	for _, client := range p.clients {
		go func() {
			_, err := client.Get(bounded, judge.Mark)
			answers <- err
		}()
	}
	for range p.clients {
		if err := <-answers; err == nil && !one.ok {
			one.ok, one.ended = true, time.Now()
			cancel()
		}
	}
	if ctx.Err() == nil {
		if !one.ok {
			one.ended = time.Now()
		}
		p.note(one)
	}
}
