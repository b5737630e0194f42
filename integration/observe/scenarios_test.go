// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-watchcache/watchcache/dashboards"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/metrics"
)

// scenario is an example server, its clients, what breaks, and the alerts that fire
// for that.
type scenario struct {
	// name is the instance of the server for Prometheus.
	name string
	// flags are those of the server, beyond where etcd is.
	flags []string
	// faulty puts faultyStorage under the cache.
	faulty bool
	// ownEtcd gives the server an etcd that no other server uses.
	ownEtcd bool
	// unused: no client speaks to the server before the fault.
	unused bool
	// load is what clients do, before the fault and after it.
	load Load
	// fault breaks something in a server that is in good order. A fault may go on
	// until ctx ends, after all alerts have fired; that of a scenario without alerts
	// comes to its end.
	fault func(ctx context.Context, s *site) error
	// mend, unless nil, undoes the fault, after which the alerts end.
	mend func(ctx context.Context, s *site) error
	// alerts are all that fire in the scenario.
	alerts []string
}

// The names of the scenarios.
const (
	goodOrder    = "good-order"
	inShadow     = "in-shadow"
	notReady     = "not-ready"
	silent       = "silent"
	relisting    = "relisting"
	expiring     = "expiring"
	inconsistent = "inconsistent"
	undecodable  = "undecodable"
	late         = "late"
	shortWindow  = "short-window"
	slowEtcd     = "slow-etcd"
)

// clients are the usual load, as little as gives rates to all panels.
var clients = Load{Writers: 1, Readers: 1, Watchers: 2, Pause: 400 * time.Millisecond}

// largeDevice is the size of a device, in bytes, some of which fill the buffers
// between a server and a client that does not read.
const largeDevice = 8 << 10

// burstDevice is the name of the device that bursts change.
const burstDevice = "burst"

func scenarios() []scenario {
	return []scenario{
		{
			name: goodOrder, flags: []string{"--watch-cache-consistency-check-interval=2s"},
			load: Load{Writers: 2, Readers: 2, Watchers: 4, Pause: 300 * time.Millisecond}, fault: bursts,
		},
		{
			name: inShadow, flags: []string{"--watch-cache-shadow=1"}, load: clients,
			fault: func(context.Context, *site) error { return nil },
		},
		{
			name: notReady, flags: []string{"--watch-cache-lazy-start"}, unused: true, load: clients,
			fault:  func(_ context.Context, s *site) error { s.proxy.Refuse(); return nil },
			mend:   heal,
			alerts: []string{dashboards.AlertNotReady},
		},
		{
			name: silent, ownEtcd: true, load: clients,
			fault:  func(ctx context.Context, s *site) error { return s.etcd.Pause(ctx) },
			mend:   func(ctx context.Context, s *site) error { return s.etcd.Resume(ctx) },
			alerts: []string{dashboards.AlertStale},
		},
		{
			name: relisting, ownEtcd: true, load: clients,
			fault: compactions, alerts: []string{dashboards.AlertRelisting},
		},
		{
			name: expiring, flags: []string{"--watch-cache-window=1s"}, load: clients,
			fault: neverReading, alerts: []string{dashboards.AlertWatchersExpiring},
		},
		{
			name: inconsistent, flags: []string{"--watch-cache-consistency-check-interval=1s"}, faulty: true, load: clients,
			fault:  func(ctx context.Context, s *site) error { return s.create(ctx, missedDevice, 0) },
			alerts: []string{dashboards.AlertConsistencyFailed},
		},
		{
			name: undecodable, load: clients,
			fault: spoil, mend: unspoil, alerts: []string{dashboards.AlertUndeliverableObject},
		},
		{
			name: late, flags: []string{"--watch-cache-max-fallback-lists=1", "--watch-cache-freshness-timeout=500ms"}, faulty: true,
			load:   Load{Writers: 1, Readers: 8, Watchers: 2, Pause: 400 * time.Millisecond},
			fault:  func(ctx context.Context, s *site) error { return s.create(ctx, lateDevice, 0) },
			alerts: []string{dashboards.AlertReadsRefused},
		},
		{
			name: shortWindow, flags: []string{"--watch-cache-window-bytes=256Ki"},
			load: Load{Writers: 1, Readers: 1, Pause: 400 * time.Millisecond},
			fault: func(ctx context.Context, s *site) error {
				return Load{Writers: 2, Pause: 200 * time.Millisecond, Bytes: largeDevice}.Run(ctx, s.server.Config)
			},
			alerts: []string{dashboards.AlertWindowShort},
		},
		{
			name: slowEtcd, load: Load{Writers: 1, Readers: 2, Watchers: 2, Pause: 400 * time.Millisecond},
			fault:  func(_ context.Context, s *site) error { s.proxy.Delay(700 * time.Millisecond); return nil },
			mend:   heal,
			alerts: []string{dashboards.AlertVersionRequestsSlow},
		},
	}
}

// heal ends what the proxy does to the way to etcd.
func heal(_ context.Context, s *site) error {
	s.proxy.Heal()
	return nil
}

// bursts writes in bursts while one client is slow: slow to take its initial
// events, and slow later, until it has caught up. No alert is for this.
func bursts(ctx context.Context, s *site) error {
	if err := s.stuck(ctx); err != nil {
		return err
	}
	slow, err := OpenSlowWatch(ctx, s.server.Config, "observe-slow-client")
	if err != nil {
		return err
	}
	defer slow.Close()
	read := func(context.Context) error { return slow.ReadFor(time.Second) }
	for _, step := range []struct {
		do    func(context.Context) error
		until string
	}{
		{read, s.series(metrics.NameWatchers, `state="live"`) + fmt.Sprintf(" > %d", s.load.Watchers)},
		{s.burst, s.series(metrics.NameWatchers, `state="parked"`) + " > 0"},
		{read, s.series(metrics.NameResumed) + " > 0"},
	} {
		if err := s.repeat(ctx, step.do, step.until); err != nil {
			return err
		}
	}
	return nil
}

// stuck opens watches whose clients do not read, until one has not been sent all of its
// initial events, and closes all of them.
func (s *site) stuck(ctx context.Context) error {
	// The first initial event is more than a connection holds.
	if err := s.create(ctx, "a-"+burstDevice, 30*largeDevice); err != nil {
		return err
	}
	var open []*SlowWatch
	closeAll := func() {
		for _, slow := range open {
			_ = slow.Close()
		}
	}
	defer closeAll()
	begin := func(ctx context.Context) error {
		if err := s.burst(ctx); err != nil {
			return err
		}
		slow, err := OpenSlowWatch(ctx, s.server.Config, "observe-stuck-client")
		if err == nil {
			open = append(open, slow)
		}
		return err
	}
	if err := s.repeat(ctx, begin, s.series(metrics.NameBytes, `part="snapshots"`)+" > 0"); err != nil {
		return err
	}
	closeAll()
	return s.repeat(ctx, pause, fmt.Sprintf("sum(%s) <= %d", s.series(metrics.NameWatchers), s.load.Watchers))
}

// burst has etcd write one device again and again, as an API server would that is not
// under test: a hundred changes at once, and then nothing for a moment.
func (s *site) burst(ctx context.Context) error {
	const changes, rest = 100, 500 * time.Millisecond
	key, err := s.key(ctx, burstDevice)
	if err != nil {
		return err
	}
	found, err := s.client.Get(ctx, key)
	if err != nil {
		return err
	}
	if len(found.Kvs) == 0 {
		return s.create(ctx, burstDevice, largeDevice)
	}
	for range changes {
		if _, err := s.client.Put(ctx, key, string(found.Kvs[0].Value)); err != nil {
			return err
		}
	}
	sleep(ctx, rest)
	return nil
}

// neverReading opens watches whose clients never read, and writes until the events
// for all of them have left the window. The watches stay open until ctx ends. Then a
// watch of a namespace in which nothing happens resumes from before the window.
func neverReading(ctx context.Context, s *site) error {
	const watchers = 8
	for range watchers {
		slow, err := OpenSlowWatch(ctx, s.server.Config, "observe-never-reading")
		if err != nil {
			return err
		}
		defer slow.Close()
	}
	client, err := versioned.NewForConfig(s.server.Config)
	if err != nil {
		return err
	}
	devices := client.FleetV1().Devices("quiet")
	quiet, err := devices.List(ctx, metav1.ListOptions{})
	if err != nil {
		return ignoreEnd(ctx, err)
	}
	if err := s.repeat(ctx, s.burst, fmt.Sprintf("%s >= %d", s.series(metrics.NameExpired), watchers)); err != nil {
		return err
	}
	resume := func(ctx context.Context) error {
		watch, err := devices.Watch(ctx, metav1.ListOptions{ResourceVersion: quiet.ResourceVersion})
		if err != nil {
			return err
		}
		watch.Stop()
		return pause(ctx)
	}
	if err := s.repeat(ctx, resume, s.series(metrics.NameBeyondWindow)+" > 0"); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// compactions cuts the server off etcd again and again while etcd compacts what the
// server has not seen, until ctx ends.
func compactions(ctx context.Context, s *site) error {
	for done := 0; ctx.Err() == nil; done++ {
		s.proxy.Silence()
		var revision int64
		for range 3 {
			put, err := s.client.Put(ctx, "/unrelated", "")
			if err != nil {
				return ignoreEnd(ctx, err)
			}
			revision = put.Header.Revision
		}
		if _, err := s.client.Compact(ctx, revision); err != nil {
			return ignoreEnd(ctx, err)
		}
		s.proxy.Cut()
		s.proxy.Heal()
		relisted := fmt.Sprintf("%s > %d", s.series(metrics.NameRelists, `cause="expired"`), done)
		if err := s.repeat(ctx, pause, relisted); err != nil {
			return err
		}
	}
	return nil
}

// pause is a step of a scenario that only waits.
func pause(ctx context.Context) error {
	sleep(ctx, pollInterval)
	return nil
}

// ignoreEnd drops an error that comes of the end of ctx.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// spoiled is the device that nobody can decode.
const spoiled = "spoiled"

// spoil writes what is no device among the devices, as only a client of etcd can.
func spoil(ctx context.Context, s *site) error {
	key, err := s.key(ctx, spoiled)
	if err == nil {
		_, err = s.client.Put(ctx, key, "no device")
	}
	return err
}

func unspoil(ctx context.Context, s *site) error {
	key, err := s.key(ctx, spoiled)
	if err == nil {
		_, err = s.client.Delete(ctx, key)
	}
	return err
}

// create creates a device of a size in bytes.
func (s *site) create(ctx context.Context, name string, bytes int) error {
	client, err := versioned.NewForConfig(s.server.Config)
	if err == nil {
		_, err = client.FleetV1().Devices(namespace).Create(ctx, Device(name, 0, bytes), metav1.CreateOptions{})
	}
	return err
}
