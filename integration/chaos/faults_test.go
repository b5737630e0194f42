// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kube-watchcache/watchcache/integration/etcdserver"
)

// fault is one thing that goes wrong, for a time, and then is right again.
type fault struct {
	name string
	// least and most are how long it lasts.
	least, most time.Duration
	// inject makes the fault and returns what ends it.
	inject func(ctx context.Context, r *run) (undo func(context.Context) error, err error)
}

// faults are all of them.
var faults = []fault{
	{"a follower is killed", time.Second, 6 * time.Second, killMembers(follower)},
	{"the leader is killed", time.Second, 6 * time.Second, killMembers(leader)},
	{"two members are killed", time.Second, 5 * time.Second, killMembers(two)},
	{"all members are killed", time.Second, 5 * time.Second, killMembers(everyone)},
	{"a follower is paused", time.Second, 8 * time.Second, pauseMembers(follower)},
	{"the leader is paused", time.Second, 8 * time.Second, pauseMembers(leader)},
	{"all members are paused", time.Second, 6 * time.Second, pauseMembers(everyone)},
	{"a follower is cut off from its peers", time.Second, 8 * time.Second, isolate(follower)},
	{"the leader is cut off from its peers", time.Second, 8 * time.Second, isolate(leader)},
	{"the history is compacted and all members are defragmented", 0, time.Second, compact},
	{"a server is killed", 0, 2 * time.Second, killServer},
	{"a server's connections to etcd are cut", time.Second, 4 * time.Second, cutLines},
	{"a server's connections to etcd are silent", time.Second, 8 * time.Second, silenceLines},
	{"a server's connections to etcd are slow", time.Second, 5 * time.Second, delayLines},
	{"clients are cut off in the middle of a message", 0, time.Second, cutClients},
	{"clients' connections stall", time.Second, 6 * time.Second, stallClients},
	{"clients' connections are slow", time.Second, 5 * time.Second, delayClients},
}

// named gives the faults of the names, in this order.
func named(names ...string) ([]fault, error) {
	var out []fault
	for _, name := range names {
		found := false
		for _, f := range faults {
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
			err = errors.Join(err, m.Kill())
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
		chosen[0].Isolate()
		return func(context.Context) error {
			chosen[0].Join()
			return nil
		}, nil
	}
}

// compact drops all of the history that the judge has read, and defragments the
// members, one after the other, which answer nothing meanwhile.
func compact(ctx context.Context, r *run) (func(context.Context) error, error) {
	upTo, err := r.record(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := r.direct.Compact(ctx, upTo); err != nil {
		return nil, err
	}
	return func(ctx context.Context) (err error) {
		for _, m := range r.cluster.Members() {
			_, failed := r.direct.Defragment(ctx, m.Direct())
			err = errors.Join(err, failed)
		}
		return err
	}, nil
}

// anyServer draws a server.
func (r *run) anyServer() *server { return r.servers[r.random.IntN(len(r.servers))] }

func killServer(_ context.Context, r *run) (func(context.Context) error, error) {
	s := r.anyServer()
	s.Kill()
	return s.Start, nil
}

// heal ends what the proxies do.
func heal(s *server) func(context.Context) error {
	return func(context.Context) error {
		s.front.Heal()
		for _, line := range s.lines {
			line.Heal()
		}
		return nil
	}
}

func cutLines(_ context.Context, r *run) (func(context.Context) error, error) {
	s := r.anyServer()
	for _, line := range s.lines {
		line.Refuse()
	}
	return heal(s), nil
}

// silenceLines silences the connections of one server to two members of three.
func silenceLines(_ context.Context, r *run) (func(context.Context) error, error) {
	s, spared := r.anyServer(), r.random.IntN(members)
	for i, line := range s.lines {
		if i != spared {
			line.Silence()
		}
	}
	return heal(s), nil
}

func delayLines(_ context.Context, r *run) (func(context.Context) error, error) {
	s := r.anyServer()
	for _, line := range s.lines {
		line.Delay(time.Duration(20+r.random.IntN(200)) * time.Millisecond)
	}
	return heal(s), nil
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
	return heal(s), nil
}

func delayClients(_ context.Context, r *run) (func(context.Context) error, error) {
	s := r.anyServer()
	s.front.Delay(time.Duration(20+r.random.IntN(200)) * time.Millisecond)
	return heal(s), nil
}

// cause lets one fault happen.
func (r *run) cause(ctx context.Context, f fault) error {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	length := f.length(r.random)
	began := time.Now()
	undo, err := f.inject(ctx, r)
	if err != nil {
		if undo != nil {
			err = errors.Join(err, undo(ctx))
		}
		return fmt.Errorf("%s: %w", f.name, err)
	}
	hold(ctx, length)
	err = undo(ctx)
	r.timeline.mark(f.name, began, time.Now())
	if err != nil {
		return fmt.Errorf("%s: ending it: %w", f.name, err)
	}
	return nil
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
