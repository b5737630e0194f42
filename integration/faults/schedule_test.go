// SPDX-License-Identifier: Apache-2.0

package faults

import (
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
	// serve on.
	members bool
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
