// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
	"github.com/kube-watchcache/watchcache/integration/internal/judge"
)

const (
	// tail is how long after a fault its effects are still counted.
	tail = 2 * time.Second
	// caughtUp bounds how long after that every watch must have what it missed,
	// and reads and health checks must be answered again.
	caughtUp = patience
)

// trial is one server on one cluster, with its clients and its judge.
type trial struct {
	t       *testing.T
	cache   string
	cluster *etcdserver.Cluster
	server  *apiserver.Process
	traffic *traffic
	etcd    *etcdProbe
	judge   *clientv3.Client // past all proxies
	history *judge.History
}

// newTrial starts everything and returns when reads are answered and every watch
// is open.
func newTrial(t *testing.T, cache string) *trial {
	_, err := testserver.Path()
	require.NoError(t, err)
	tr := &trial{t: t, cache: cache, history: judge.NewHistory()}
	tr.cluster = etcdserver.StartCluster(t, 3, t.TempDir())
	tr.judge, err = clientv3.New(clientv3.Config{Endpoints: tr.cluster.Direct(), Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = tr.judge.Close() })
	tr.server = testserver.Start(t, cache, tr.cluster.Endpoints())
	tr.etcd, err = newEtcdProbe(tr.cluster.Direct())
	require.NoError(t, err)
	t.Cleanup(tr.etcd.close)
	tr.traffic = newTraffic(t, tr.server)
	ctx, cancel := context.WithCancel(t.Context())
	tr.traffic.tasks.Go(func() { tr.etcd.run(ctx) })
	t.Cleanup(func() {
		cancel()
		tr.traffic.stop()
	})
	require.Empty(t, tr.settle().violations, "before any fault")
	return tr
}

// row is what one fault did to one server.
type row struct {
	gets, lists   figure        // of consistent reads of the server
	etcd          figure        // of etcd itself
	livez, readyz time.Duration // the longest time without an answer
	report
}

// String says which part of reads was answered within a second, and the longest time
// without an answer.
func (r row) String() string {
	return fmt.Sprintf("GET %v, LIST %v, etcd itself %v; watches: %+v; without /livez %.1f s, without /readyz %.1f s; %d violations",
		r.gets, r.lists, r.etcd, r.ends, r.livez.Seconds(), r.readyz.Seconds(), len(r.violations))
}

// report is what the judge found.
type report struct {
	ends       ends
	said       []string // by watches that ended
	violations judge.Violations
}

// run lets one fault happen and returns what became of it.
func (tr *trial) run(f fault) row {
	tr.t.Helper()
	var r row
	inject := f.prepare(tr)
	from := time.Now()
	undo := inject()
	hold(f.hold)
	undo()
	hold(tail)
	to := time.Now()
	r.report = tr.settle()
	if tr.cache == apiserver.Ours && (len(r.violations) > 0 || r.ends.ended() > 0) {
		tr.server.Suspect = true
	}
	r.gets = tr.traffic.gets.outcomes.between(from, to)
	r.lists = tr.traffic.lists.outcomes.between(from, to)
	r.etcd = tr.etcd.between(from, to)
	r.livez = tr.traffic.health[0].between(from, time.Now()).gap
	r.readyz = tr.traffic.health[1].between(from, time.Now()).gap
	return r
}

// hold waits for the time that a fault lasts.
func hold(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}

// settle waits until everything is as it should be again, with no writes under
// way, and judges all that came since the last call.
func (tr *trial) settle() (out report) {
	tr.t.Helper()
	resume := tr.traffic.writer.pause()
	defer resume()
	ctx, cancel := context.WithTimeout(tr.t.Context(), 2*patience)
	defer cancel()
	upTo, err := tr.history.Extend(ctx, tr.judge)
	require.NoError(tr.t, err, "reading etcd's history")
	out.violations = tr.awaitRecovery(ctx, upTo)

	var reads []judge.Read
	reads = append(reads, tr.traffic.gets.answers.take()...)
	reads = append(reads, tr.traffic.lists.answers.take()...)
	var watched []judge.Stream
	for _, w := range tr.traffic.watchers {
		streams, lists, ends, said := w.collect(upTo)
		out.ends.add(ends)
		out.said = append(out.said, said...)
		watched, reads = append(watched, streams...), append(reads, lists...)
	}
	// A write that nobody acknowledged may have been applied meanwhile.
	_, err = tr.history.Extend(ctx, tr.judge)
	require.NoError(tr.t, err, "reading etcd's history")
	writes := tr.traffic.writer.writes()
	judge.Absent(tr.history, reads)
	out.violations = append(out.violations, judge.Writes(tr.history, writes)...)
	out.violations = append(out.violations, judge.Reads(tr.history, writes, reads)...)
	out.violations = append(out.violations, judge.Streams(tr.history, upTo, watched...)...)
	return out
}

// awaitRecovery returns what has not recovered in time.
func (tr *trial) awaitRecovery(ctx context.Context, upTo int64) judge.Violations {
	ctx, cancel := context.WithTimeout(ctx, caughtUp)
	defer cancel()
	return judge.Await(ctx, probeInterval, func() judge.Violations { return tr.missing(upTo) })
}

// missing is what is not as it should be.
func (tr *trial) missing(upTo int64) (found judge.Violations) {
	if !tr.server.Alive() {
		found.Add(judge.Complete, "the server has ended:\n%s", tr.server.Log())
		return found
	}
	if !tr.traffic.gets.outcomes.latest() {
		found.Add(judge.Complete, "consistent GETs are not answered %v after the fault", caughtUp)
	}
	if !tr.traffic.lists.outcomes.latest() {
		found.Add(judge.Complete, "consistent LISTs are not answered %v after the fault", caughtUp)
	}
	for _, p := range tr.traffic.health {
		if !p.latest() {
			found.Add(judge.Complete, "%s fails %v after the fault", p.path, caughtUp)
		}
	}
	for i, w := range tr.traffic.watchers {
		found = append(found, judge.Incomplete(tr.history, upTo, judge.Follower{Name: strconv.Itoa(i), Selection: w.selection, To: w.to()})...)
	}
	return found
}

// target is the member to hit: the one on which the server's watch is.
func (tr *trial) target() *etcdserver.Member {
	tr.t.Helper()
	var found *etcdserver.Member
	poll(tr.t, "no member serves a watch of the server", func() bool {
		most := 0
		for _, m := range tr.cluster.Members() {
			n, err := m.Watchers(tr.t.Context())
			require.NoError(tr.t, err)
			if n > most {
				found, most = m, n
			}
		}
		return most > 0
	})
	return found
}

// poll returns when the condition holds.
func poll(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			require.FailNow(t, what)
		}
	}
}

// other is a member that is not m.
func (tr *trial) other(m *etcdserver.Member) *etcdserver.Member {
	for _, other := range tr.cluster.Members() {
		if other != m {
			return other
		}
	}
	return nil
}

// must fails the test if a fault could not be made.
func (tr *trial) must(err error) {
	tr.t.Helper()
	require.NoError(tr.t, err)
}

// within is a context for one step of a fault.
func (tr *trial) within() context.Context {
	ctx, cancel := context.WithTimeout(tr.t.Context(), patience)
	tr.t.Cleanup(cancel)
	return ctx
}
