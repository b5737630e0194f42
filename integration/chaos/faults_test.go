// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/integration/internal/proxy"
)

// fault is one thing that goes wrong, for a time, and then is right again.
type fault struct {
	name string
	// at says what is hit: faults at different places happen at the same time, too.
	at place
	// least and most are how long it lasts.
	least, most time.Duration
	// inject makes the fault and returns what ends it.
	inject func(ctx context.Context, r *run) (undo func(context.Context) error, err error)
}

// place is what a fault hits.
type place int

const (
	atMembers place = iota
	atServers       // and at connections of theirs
)

// faults are those that are possible everywhere.
var faults = []fault{
	{"a follower is killed", atMembers, time.Second, 6 * time.Second, killMembers(follower)},
	{"the leader is killed", atMembers, time.Second, 6 * time.Second, killMembers(leader)},
	{"two members are killed", atMembers, time.Second, 5 * time.Second, killMembers(two)},
	{"all members are killed", atMembers, time.Second, 5 * time.Second, killMembers(everyone)},
	{"a follower is paused", atMembers, time.Second, 8 * time.Second, pauseMembers(follower)},
	{"the leader is paused", atMembers, time.Second, 8 * time.Second, pauseMembers(leader)},
	{"all members are paused", atMembers, time.Second, 6 * time.Second, pauseMembers(everyone)},
	{"a follower is cut off from its peers", atMembers, time.Second, 8 * time.Second, isolate(follower)},
	{"the leader is cut off from its peers", atMembers, time.Second, 8 * time.Second, isolate(leader)},
	{"a member loses its network", atMembers, time.Second, 8 * time.Second, disconnect(follower)},
	{"the leader loses its network", atMembers, time.Second, 8 * time.Second, disconnect(leader)},
	{"the history is compacted and all members are defragmented", atMembers, 0, time.Second, compact},
	{"a server is killed", atServers, 0, 2 * time.Second, killServer},
	{"a server's connections to etcd are cut", atServers, time.Second, 4 * time.Second, cutLines},
	{"a server's connections to etcd are silent", atServers, time.Second, 8 * time.Second, silenceLines},
	{"a server's connections to etcd are slow", atServers, time.Second, 5 * time.Second, delayLines},
	{"clients are cut off in the middle of a message", atServers, 0, time.Second, cutClients},
	{"clients' connections stall", atServers, time.Second, 6 * time.Second, stallClients},
	{"clients' connections are slow", atServers, time.Second, 5 * time.Second, delayClients},
	{"a server's connections to etcd overtake each other", atServers, time.Second, 6 * time.Second, reorderLines},
	{"clients' connections overtake each other", atServers, time.Second, 6 * time.Second, reorderClients},
	{"etcd has no space left", atMembers, 500 * time.Millisecond, 4 * time.Second, fillUp},
}

// slowFaults are possible where fsync can be made slow.
var slowFaults = []fault{
	{"the disk of a follower is slow", atMembers, time.Second, 10 * time.Second, slowDisks(follower)},
	{"the disk of the leader is slow", atMembers, time.Second, 10 * time.Second, slowDisks(leader)},
	{"all disks are slow", atMembers, time.Second, 10 * time.Second, slowDisks(everyone)},
}

// named gives the faults of the names, in this order.
func named(names ...string) ([]fault, error) {
	var out []fault
	for _, name := range names {
		found := false
		for _, f := range slices.Concat(faults, slowFaults) {
			if f.name == name {
				out, found = append(out, f), true
			}
		}
		if !found {
			return nil, fmt.Errorf("no fault is called %q", name)
		}
	}
	return out, nil
}

// possible reports whether the run can have the fault.
func (f fault) possible(r *run) bool {
	return r.unslow == nil || !slices.ContainsFunc(slowFaults, func(slow fault) bool { return slow.name == f.name })
}

// length draws how long a fault lasts.
func (f fault) length(random *rand.Rand) time.Duration {
	if f.most <= f.least {
		return f.least
	}
	return f.least + time.Duration(random.Int64N(int64(f.most-f.least)))
}

// undoing does nothing: the fault is over by itself.
func undoing(context.Context) error { return nil }

// which chooses members.
type which func(ctx context.Context, r *run) ([]*etcdserver.Member, error)

func leader(ctx context.Context, r *run) ([]*etcdserver.Member, error) {
	m, err := r.cluster.Leader(ctx)
	if err == nil && m == nil {
		err = errors.New("no member answers")
	}
	return []*etcdserver.Member{m}, err
}

func follower(ctx context.Context, r *run) ([]*etcdserver.Member, error) {
	lead, err := leader(ctx, r)
	if err != nil {
		return nil, err
	}
	for {
		if m := r.cluster.Member(r.random.IntN(members)); m != lead[0] {
			return []*etcdserver.Member{m}, nil
		}
	}
}

func two(_ context.Context, r *run) ([]*etcdserver.Member, error) {
	spared := r.random.IntN(members)
	return append(append([]*etcdserver.Member(nil), r.cluster.Members()[:spared]...), r.cluster.Members()[spared+1:]...), nil
}

func everyone(_ context.Context, r *run) ([]*etcdserver.Member, error) {
	return r.cluster.Members(), nil
}

// killMembers kills members at once (SIGKILL) and starts them again on their data.
func killMembers(choose which) func(context.Context, *run) (func(context.Context) error, error) {
	return func(ctx context.Context, r *run) (func(context.Context) error, error) {
		chosen, err := choose(ctx, r)
		if err != nil {
			return nil, err
		}
		for _, m := range chosen {
			err = errors.Join(err, m.Kill(ctx))
		}
		return r.cluster.StartAll, err
	}
}

// pauseMembers stops members (SIGSTOP): their connections stay open.
func pauseMembers(choose which) func(context.Context, *run) (func(context.Context) error, error) {
	return func(ctx context.Context, r *run) (func(context.Context) error, error) {
		chosen, err := choose(ctx, r)
		if err != nil {
			return nil, err
		}
		for _, m := range chosen {
			err = errors.Join(err, m.Pause(ctx))
		}
		return func(ctx context.Context) (err error) {
			for _, m := range chosen {
				err = errors.Join(err, m.Resume(ctx))
			}
			return err
		}, err
	}
}

// isolate cuts a member off from the others, but not from the servers.
func isolate(choose which) func(context.Context, *run) (func(context.Context) error, error) {
	return func(ctx context.Context, r *run) (func(context.Context) error, error) {
		chosen, err := choose(ctx, r)
		if err != nil {
			return nil, err
		}
		return chosen[0].Join, chosen[0].Isolate(ctx)
	}
}

// disconnect cuts a member off from the others and from all servers: a container by
// its networks, a process by proxies.
func disconnect(choose which) func(context.Context, *run) (func(context.Context) error, error) {
	return func(ctx context.Context, r *run) (func(context.Context) error, error) {
		chosen, err := choose(ctx, r)
		if err != nil {
			return nil, err
		}
		m, connect := chosen[0], chosen[0].Connect
		if r.cluster.Mode() == etcdserver.Process {
			index := slices.Index(r.cluster.Members(), m)
			for _, s := range r.servers {
				s.lines[index].Refuse()
			}
			connect = func(ctx context.Context) error {
				for _, s := range r.servers {
					s.lines[index].Heal()
				}
				return m.Connect(ctx)
			}
		}
		return connect, m.Disconnect(ctx)
	}
}

// slowest is the longest that an fsync takes on a slow disk: longer than members
// wait for their leader before they elect another one.
const slowest = 1500 * time.Millisecond

// slowDisks makes each fsync of members take up to slowest.
func slowDisks(choose which) func(context.Context, *run) (func(context.Context) error, error) {
	return func(ctx context.Context, r *run) (func(context.Context) error, error) {
		if r.unslow != nil {
			return nil, r.unslow
		}
		chosen, err := choose(ctx, r)
		if err != nil {
			return nil, err
		}
		each := slowest/10 + time.Duration(r.random.Int64N(int64(slowest*9/10)))
		for _, m := range chosen {
			err = errors.Join(err, m.SlowDisk(ctx, each))
		}
		return func(ctx context.Context) error {
			var errs []error
			for _, m := range chosen {
				n, err := m.SlowSyncs(ctx)
				r.slowSyncs += n
				errs = append(errs, err, m.SlowDisk(ctx, 0))
			}
			return errors.Join(errs...)
		}, err
	}
}

// compact drops all of the history that the judge has read, and defragments the
// members, one after the other, which answer nothing meanwhile.
func compact(ctx context.Context, r *run) (func(context.Context) error, error) {
	var upTo int64
	if err := repeated(ctx, func(ctx context.Context) (err error) {
		upTo, err = r.record(ctx)
		return err
	}); err != nil {
		return nil, fmt.Errorf("read the history: %w", err)
	}
	if err := repeated(ctx, func(ctx context.Context) error { return r.compactTo(ctx, upTo) }); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return repeated(ctx, r.defragment) }, nil
}

// anyServer draws a server.
func (r *run) anyServer() *server { return r.servers[r.random.IntN(len(r.servers))] }

func killServer(_ context.Context, r *run) (func(context.Context) error, error) {
	s := r.anyServer()
	s.Kill()
	return s.Start, nil
}

// heal ends what proxies do.
func heal(proxies ...*proxy.Proxy) func(context.Context) error {
	return func(context.Context) error {
		for _, p := range proxies {
			p.Heal()
		}
		return nil
	}
}

func cutLines(_ context.Context, r *run) (func(context.Context) error, error) {
	s := r.anyServer()
	for _, line := range s.lines {
		line.Refuse()
	}
	return heal(s.lines...), nil
}

// silenceLines silences the connections of one server to two members of three.
func silenceLines(_ context.Context, r *run) (func(context.Context) error, error) {
	s, spared := r.anyServer(), r.random.IntN(members)
	for i, line := range s.lines {
		if i != spared {
			line.Silence()
		}
	}
	return heal(s.lines...), nil
}

func delayLines(_ context.Context, r *run) (func(context.Context) error, error) {
	s := r.anyServer()
	for _, line := range s.lines {
		line.Delay(time.Duration(20+r.random.IntN(200)) * time.Millisecond)
	}
	return heal(s.lines...), nil
}

// cutClients cuts every connection to a server, each after some bytes more.
func cutClients(_ context.Context, r *run) (func(context.Context) error, error) {
	s := r.anyServer()
	s.front.CutAfter(1 + r.random.IntN(4096))
	return undoing, nil
}

func stallClients(_ context.Context, r *run) (func(context.Context) error, error) {
	s := r.anyServer()
	s.front.Silence()
	return heal(s.front), nil
}

func delayClients(_ context.Context, r *run) (func(context.Context) error, error) {
	s := r.anyServer()
	s.front.Delay(time.Duration(20+r.random.IntN(200)) * time.Millisecond)
	return heal(s.front), nil
}

// uneven draws delays that differ much from each other.
func (r *run) uneven() func() time.Duration {
	random := rand.New(rand.NewPCG(r.random.Uint64(), 0)) // the proxies call it
	return func() time.Duration { return time.Duration(random.IntN(300)) * time.Millisecond }
}

func reorderLines(_ context.Context, r *run) (func(context.Context) error, error) {
	s := r.anyServer()
	for _, line := range s.lines {
		line.DelayEach(r.uneven())
	}
	return heal(s.lines...), nil
}

func reorderClients(_ context.Context, r *run) (func(context.Context) error, error) {
	s := r.anyServer()
	s.front.DelayEach(r.uneven())
	return heal(s.front), nil
}

// cause lets one fault happen, or several at the same time: each begins in the
// middle of the one before, and ends after it.
func (r *run) cause(ctx context.Context, together ...fault) error {
	ctx, cancel := context.WithTimeout(ctx, 3*patience)
	defer cancel()
	var undoing []func() error
	for i, f := range together {
		length := f.length(r.random)
		if i+1 < len(together) {
			length /= 2
		}
		began := time.Now()
		undo, err := f.inject(ctx, r)
		if undo != nil {
			undoing = append(undoing, func() error {
				err := undo(ctx)
				r.marks = append(r.marks, mark{f.name, began.Sub(r.began), time.Since(r.began)})
				if err != nil {
					return fmt.Errorf("%s: ending it: %w", f.name, err)
				}
				return nil
			})
		}
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", f.name, err), all(undoing))
		}
		hold(ctx, length)
	}
	return all(undoing)
}

// all calls them in this order, and joins what fails.
func all(calls []func() error) (err error) {
	for _, call := range calls {
		err = errors.Join(err, call())
	}
	return err
}

// quiet waits until the cluster answers again, so that the next fault is one that
// etcd survives.
func (r *run) quiet(ctx context.Context) {
	r.t.Helper()
	r.await(ctx, "etcd does not answer after a fault", func() error {
		ctx, cancel := context.WithTimeout(ctx, askPatience)
		defer cancel()
		_, err := r.direct.Get(ctx, registry, clientv3.WithCountOnly())
		return err
	})
}
