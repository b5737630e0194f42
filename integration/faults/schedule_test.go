// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"math/rand/v2"
	"time"
)

// fault is one thing that goes wrong, for a time, and then is right again.
type fault struct {
	name string
	hold time.Duration
	// prepare brings the cluster to where the fault hits hardest; it returns what
	// makes the fault, which returns what ends it.
	prepare func(*trial) (inject func() (undo func()))
	// members: the fault takes a member away, not the majority; a server can
	// serve on. ends: the fault ends watches, whatever the cache does.
	members, ends bool
}

// The times are those of the baseline that the figures are compared with.
const (
	outage = 5 * time.Second
	hang   = 6 * time.Second
)

// shortForm hits, each time, the member on which the server's own watch is.
func shortForm() []fault {
	return []fault{
		{name: "two members killed", hold: outage, prepare: killTwo},
		{name: "follower paused", hold: hang, prepare: pauseFollower, members: true},
		{name: "leader paused", hold: hang, prepare: pauseLeader, members: true},
		{name: "client connection silent", hold: hang, prepare: silence, members: true},
		{name: "member cut off from peers", hold: hang, prepare: isolate, members: true},
	}
}

// killTwo leaves the member on which the watch is, without a majority.
func killTwo(tr *trial) func() func() {
	left := tr.target()
	return func() func() {
		for _, m := range tr.cluster.Members() {
			if m != left {
				tr.must(m.Kill(tr.within()))
			}
		}
		return func() { tr.must(tr.cluster.StartAll(tr.within())) }
	}
}

func pauseFollower(tr *trial) func() func() {
	member := tr.target()
	tr.must(tr.other(member).Lead(tr.within()))
	return func() func() {
		tr.must(member.Pause(tr.within()))
		return func() { tr.must(member.Resume(tr.within())) }
	}
}

func pauseLeader(tr *trial) func() func() {
	member := tr.target()
	tr.must(member.Lead(tr.within()))
	return func() func() {
		tr.must(member.Pause(tr.within()))
		return func() { tr.must(member.Resume(tr.within())) }
	}
}

// silence is of the server's connections to the member on which its watch is:
// they stay open, new ones are accepted, and nothing gets through.
func silence(tr *trial) func() func() {
	member := tr.target()
	return func() func() {
		member.Clients().Silence()
		return member.Clients().Heal
	}
}

func isolate(tr *trial) func() func() {
	member := tr.target()
	tr.must(tr.other(member).Lead(tr.within()))
	return func() func() {
		tr.must(member.Isolate(tr.within()))
		return func() { tr.must(member.Join(tr.within())) }
	}
}

// longForm adds what takes longer or is less likely.
func longForm() []fault {
	return append(shortForm(),
		fault{name: "all members killed", prepare: killAll},
		fault{name: "one member killed", prepare: killOne, members: true},
		fault{name: "client connection cut", prepare: cut, members: true},
		fault{name: "client connection slow", prepare: delay, members: true},
		fault{name: "history compacted", prepare: compact, members: true},
		fault{name: "server killed", prepare: restartServer, ends: true},
	)
}

// shuffled draws n faults, and how long each lasts.
func shuffled(random *rand.Rand, n int) []fault {
	all := longForm()
	out := make([]fault, n)
	for i := range out {
		out[i] = all[random.IntN(len(all))]
		out[i].hold = time.Second + time.Duration(random.Int64N(int64(9*time.Second)))
	}
	return out
}

func killAll(tr *trial) func() func() {
	return func() func() {
		for _, m := range tr.cluster.Members() {
			tr.must(m.Kill(tr.within()))
		}
		return func() { tr.must(tr.cluster.StartAll(tr.within())) }
	}
}

func killOne(tr *trial) func() func() {
	member := tr.target()
	return func() func() {
		tr.must(member.Kill(tr.within()))
		return func() { tr.must(tr.cluster.StartAll(tr.within())) }
	}
}

func cut(tr *trial) func() func() {
	member := tr.target()
	return func() func() {
		member.Clients().Refuse()
		return member.Clients().Heal
	}
}

func delay(tr *trial) func() func() {
	member := tr.target()
	return func() func() {
		member.Clients().Delay(300 * time.Millisecond)
		return member.Clients().Heal
	}
}

// compact leaves nothing of the history but the present.
func compact(tr *trial) func() func() {
	return func() func() {
		resume := tr.traffic.writer.pause()
		defer resume()
		now, err := tr.history.Extend(tr.within(), tr.judge)
		tr.must(err)
		_, err = tr.judge.Compact(tr.within(), now)
		tr.must(err)
		return func() {}
	}
}

func restartServer(tr *trial) func() func() {
	return func() func() {
		tr.server.Kill()
		return func() { tr.must(tr.server.Start(tr.within())) }
	}
}
