// SPDX-License-Identifier: Apache-2.0

//go:build unix

package load

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/procfs"

	"github.com/kube-watchcache/watchcache/integration/kubernetes/local"
	"github.com/kube-watchcache/watchcache/integration/kubernetes/nodes"
)

// meter reads what the servers have taken so far.
type meter struct {
	cluster *local.Cluster
	counts  *nodes.Counts

	mu struct {
		sync.Mutex
		// spent is what kube-apiservers that were stopped have taken, in seconds.
		spent    float64
		away     bool // while none runs
		resident []resident
		// readyAfter is how long the last restart took.
		readyAfter time.Duration
	}
}

type resident struct {
	at    time.Time
	bytes float64
}

// reading is figures by their names; each only grows.
type reading map[string]float64

// minus writes what was added since an earlier reading.
func (r reading) minus(before reading, to map[string]float64) {
	for name, value := range r {
		to[name] = value - before[name]
	}
}

// taken returns CPU seconds and resident bytes of a server.
func taken(p *local.Process) (cpu, bytes float64, err error) {
	process, err := procfs.NewProc(p.PID())
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w", p.Name, err)
	}
	stat, err := process.Stat()
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w", p.Name, err)
	}
	return stat.CPUTime(), float64(stat.ResidentMemory()), nil
}

func (m *meter) read() (reading, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	cpu, _, err := taken(m.cluster.Server("kube-apiserver"))
	if err != nil {
		return nil, err
	}
	etcd, _, err := taken(m.cluster.Server("etcd"))
	if err != nil {
		return nil, err
	}
	r := reading{
		"cpu": m.mu.spent + cpu, "etcd cpu": etcd,
		"nodes gone": float64(m.counts.Gone.Load()), "nodes lists": float64(m.counts.Lists.Load()),
		"pods ready": float64(m.counts.Ready.Load()), "failed": float64(m.counts.Failed.Load()),
		"etcd range": 0, "etcd txn": 0, "etcd watch": 0,
	}
	return r, m.readEtcd(r)
}

// of are the figures of etcd's methods. A watch stream is one request, and each watch
// and each request for progress a message of it.
var of = map[string]map[string]string{
	"grpc_server_started_total":      {"Range": "etcd range", "RangeStream": "etcd range", "Txn": "etcd txn"},
	"grpc_server_msg_received_total": {"Watch": "etcd watch"},
}

func (m *meter) readEtcd(r reading) error {
	response, err := http.Get(m.cluster.EtcdMetrics())
	if err != nil {
		return err
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return fmt.Errorf("etcd's metrics: %w", err)
	}
	for name, methods := range of {
		if families[name] == nil {
			return fmt.Errorf("etcd has no metric %s", name)
		}
		for _, metric := range families[name].GetMetric() {
			for _, label := range metric.GetLabel() {
				if figure := methods[label.GetValue()]; label.GetName() == "grpc_method" && figure != "" {
					r[figure] += metric.GetCounter().GetValue()
				}
			}
		}
	}
	return nil
}

// follow notes the kube-apiserver's memory until ctx ends.
func (m *meter) follow(ctx context.Context) error {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := m.note(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (m *meter) note() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.away {
		return nil
	}
	_, bytes, err := taken(m.cluster.Server("kube-apiserver"))
	m.mu.resident = append(m.mu.resident, resident{time.Now(), bytes})
	return err
}

// peak returns the most memory in a time.
func (m *meter) peak(from, to time.Time) (most float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.mu.resident {
		if !r.at.Before(from) && !r.at.After(to) {
			most = max(most, r.bytes)
		}
	}
	return most
}

// restart stops the kube-apiserver and starts it again.
func (m *meter) restart(ctx context.Context) error {
	m.mu.Lock()
	cpu, _, err := taken(m.cluster.Server("kube-apiserver"))
	m.mu.spent += cpu
	m.mu.away = true
	m.mu.Unlock()
	if err != nil {
		return err
	}
	stopped := time.Now()
	if err := m.cluster.StopServer("kube-apiserver"); err != nil {
		return err
	}
	if err := m.cluster.StartAPIServer(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.away = false
	m.mu.readyAfter = time.Since(stopped)
	return nil
}

// lastStart is how long the last restart took, from the signal to end to readiness.
func (m *meter) lastStart() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.readyAfter
}
