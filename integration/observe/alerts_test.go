// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/dashboards"
	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/internal/needs"
	"github.com/kube-watchcache/watchcache/metrics"
)

const (
	// scale is that of the rules in TestAlerts: five minutes of an alert are twenty
	// seconds.
	scale = dashboards.Scale(15)
	// scrapeInterval is the time between two scrapes, and the longest that one may
	// take. Four of them are in the shortest range of the rules.
	scrapeInterval = 2 * time.Second
	// trialPatience bounds the whole of TestAlerts, in which ten servers start.
	trialPatience = 10 * time.Minute
)

// TestAlerts breaks example servers, one in each of the ways that there is an alert
// for and all at the same time, under one Prometheus with the rules at a scale. Each
// alert fires for the server that it is for, and for no other one; alerts whose fault
// is mended end. Then every panel of the dashboards has data.
func TestAlerts(t *testing.T) {
	needs.Program(t, "prometheus", "prometheus")
	require.NoError(t, etcdserver.Prepare(etcdserver.Process)) // what is compiled has no deadline
	ctx, cancel := context.WithTimeout(t.Context(), trialPatience)
	defer cancel()
	began := time.Now()
	sites := openSites(t, ctx, scenarios())
	trial := &trial{sites: sites, prometheus: startPrometheusFor(t, ctx, sites), failed: make(chan error, len(sites))}
	defer trial.end()
	phase := func(what string) { fmt.Printf("%s %.0f s after the beginning\n", what, time.Since(began).Seconds()) }
	phase("servers and Prometheus serve")
	trial.begin(t, ctx)
	phase("all are in good order")
	trial.breakAll(t, ctx)
	phase("all alerts have fired, and all faults have come to their end,")
	trial.mendAll(t, ctx)
	phase("all that was mended is in good order")
	trial.judge(t, ctx)
	t.Run("panels", func(t *testing.T) { checkPanels(t, ctx, trial.prometheus, began) })
	phase("all panels were looked at")
}

func startPrometheusFor(t *testing.T, ctx context.Context, sites []*site) *Prometheus {
	t.Helper()
	var targets []Target
	for _, s := range sites {
		targets = append(targets, s.target)
	}
	prometheus, err := StartPrometheus(ctx, PrometheusConfig{Dir: t.TempDir(), Interval: scrapeInterval, Scale: scale, Targets: targets})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, within(prometheus.Stop)) })
	for _, s := range sites {
		s.prometheus = prometheus
	}
	return prometheus
}

// trial is one run of all scenarios.
type trial struct {
	sites      []*site
	prometheus *Prometheus
	// tasks are the clients and the faults; failed has their errors.
	tasks  sync.WaitGroup
	failed chan error
	stop   context.CancelFunc
	ctx    context.Context // of the clients
}

// run runs something beside the test, until it returns or the trial ends.
func (r *trial) run(s *site, what string, do func(context.Context) error) {
	ctx := r.ctx
	r.tasks.Go(func() {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			r.failed <- fmt.Errorf("%s: %s: %w", s.name, what, err)
		}
	})
}

// end ends the clients and awaits them.
func (r *trial) end() {
	if r.stop != nil {
		r.stop()
	}
	r.tasks.Wait()
}

// begin starts the clients, and returns when Prometheus sees all servers in good order.
func (r *trial) begin(t *testing.T, ctx context.Context) {
	t.Helper()
	r.ctx, r.stop = context.WithCancel(ctx)
	for _, s := range r.sites {
		if !s.unused {
			r.run(s, "clients", s.clients)
		}
	}
	for _, s := range r.sites {
		r.await(t, ctx, "Prometheus sees the server "+s.name, func(ctx context.Context) (bool, error) {
			good := s.series(metrics.NameReady) + " == 1 and on (instance) " + s.series(metrics.NameReads, `decision="consistent"`) + " > 0"
			switch {
			case s.unused:
				good = s.series(metrics.NameAsleep) + " == 1"
			case s.name == inShadow:
				good = s.series(metrics.NameReady) + " == 1 and on (instance) " + s.series(metrics.NameShadowCompared, `kind="get"`) + " > 0"
			}
			found, err := r.prometheus.Query(ctx, good)
			return len(found) > 0, err
		})
	}
	require.Empty(t, r.fired(t, ctx), "nothing is broken yet")
}

// clients runs the usual clients.
func (s *site) clients(ctx context.Context) error { return s.load.Run(ctx, s.server.Config) }

// breakAll breaks what each scenario breaks, and returns when each alert has fired
// that is to fire, or another one has.
func (r *trial) breakAll(t *testing.T, ctx context.Context) {
	t.Helper()
	broken := time.Now()
	for _, s := range r.sites {
		r.run(s, "the fault", s.breaks)
		if s.unused {
			r.run(s, "clients", s.clients)
		}
	}
	expected, seen := r.expected(), map[string]bool{}
	r.await(t, ctx, "all alerts fire", func(ctx context.Context) (bool, error) {
		for _, alert := range r.fired(t, ctx) {
			if seen[alert] {
				continue
			}
			seen[alert] = true
			after := time.Since(broken)
			fmt.Printf("%-40s %5.1f s after the fault, which is %.1f minutes of the rules\n", alert, after.Seconds(), after.Minutes()*float64(scale))
			require.Contains(t, expected, alert, "the alert is for another fault: %s", r.evidence(ctx, alert))
		}
		if missing := r.missing(seen); len(missing) > 0 {
			return false, fmt.Errorf("still to come: %v", missing)
		}
		return true, nil
	})
}

// missing is the alerts that are expected and were not seen, and the scenarios
// without alerts that have not come to their end.
func (r *trial) missing(seen map[string]bool) []string {
	missing := slices.DeleteFunc(r.expected(), func(alert string) bool { return seen[alert] })
	for _, s := range r.sites {
		if len(s.alerts) > 0 {
			continue
		}
		select {
		case <-s.broken:
		default:
			missing = append(missing, "the end of "+s.name)
		}
	}
	return missing
}

// mendAll undoes the faults that can be undone, and returns when their alerts have
// ended.
func (r *trial) mendAll(t *testing.T, ctx context.Context) {
	t.Helper()
	for _, s := range r.sites {
		if s.mend != nil {
			require.NoError(t, s.mend(ctx, s), s.name)
		}
	}
	for _, s := range r.sites {
		if s.mend == nil {
			continue
		}
		r.await(t, ctx, "the alert of "+s.name+" ends", func(ctx context.Context) (bool, error) {
			firing, err := r.prometheus.Query(ctx, fmt.Sprintf(`ALERTS{alertstate="firing",instance=%q}`, s.name))
			return len(firing) == 0, err
		})
	}
}

// judge compares all alerts that have ever fired with those that should have.
func (r *trial) judge(t *testing.T, ctx context.Context) {
	t.Helper()
	require.Equal(t, r.expected(), r.fired(t, ctx))
}

// expected is all alerts of all scenarios, sorted, as fired has them.
func (r *trial) expected() []string {
	var out []string
	for _, s := range r.sites {
		for _, alert := range s.alerts {
			out = append(out, s.name+" "+alert)
		}
	}
	slices.Sort(out)
	return out
}

// fired is all alerts that have fired since the start, each after its server's name.
func (r *trial) fired(t *testing.T, ctx context.Context) []string {
	t.Helper()
	samples, err := r.prometheus.Query(ctx, `max by (alertname, instance) (max_over_time(ALERTS{alertstate="firing"}[1h]))`)
	require.NoError(t, err)
	fired := map[string]bool{}
	for _, sample := range samples {
		fired[sample.Labels["instance"]+" "+sample.Labels["alertname"]] = true
	}
	return slices.Sorted(maps.Keys(fired))
}

// evidence is what the rules have recorded of an alert's server.
func (r *trial) evidence(ctx context.Context, alert string) string {
	instance, _, _ := strings.Cut(alert, " ")
	samples, err := r.prometheus.Query(ctx, fmt.Sprintf(`{__name__=~"watchcache:.*|%s|%s|%s",instance=%q}`,
		metrics.NameReady, metrics.NamePaused, metrics.NameStorageSilence, instance))
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	for _, sample := range samples {
		fmt.Fprintf(&out, "\n%s %v", sample.Labels["__name__"], sample.Value)
	}
	return out.String()
}

// await is the function of the same name, and fails with the error of a task.
func (r *trial) await(t *testing.T, ctx context.Context, what string, condition func(context.Context) (bool, error)) {
	t.Helper()
	await(t, ctx, what, func(ctx context.Context) (bool, error) {
		select {
		case err := <-r.failed:
			require.NoError(t, err)
		default:
		}
		return condition(ctx)
	})
}
