// SPDX-License-Identifier: Apache-2.0

// Package chaos breaks three etcd members and two API servers under load, and
// holds everything that clients saw to what etcd says that has happened.
//
// The parts and their owners:
//
//   - run has the cluster (integration/etcdserver), the two servers
//     (integration/internal/apiserver), and a proxy of each server to each member
//     and before each server. A run records etcd's history by a watch of all keys,
//     directly at the members; a missing revision is an error.
//   - clients is the load: writers through both servers and in transactions past
//     them, readers of every kind, watchers that begin in every way. A client
//     notes its requests and answers, and judges nothing.
//   - faults is the list of what goes wrong. A fault ends what it began; cause
//     lets one happen, and the next one begins when etcd answers again.
//   - settle ends a run: it writes every device once more, waits until each watch
//     has that, and asks the judges of integration/internal/judge. compareStates
//     lists both servers in every form at one version; leaks measures what is left
//     when the clients have gone.
//   - timeline and report are for people.
//
// Package integration/internal/judge names the properties that are judged. A write that
// was not answered may have been applied at any later time. A client that is cut
// off between two events of one revision and resumes at it misses the second, as
// with etcd itself (docs/decisions/0006): a stream is judged by what was asked
// for, and not by what the client had before. Two things are not promised, and so
// not judged: a GET at resourceVersion "0" which finds nothing may be older than one
// before it, and a server need not answer while etcd does not.
//
// The short form is a part of make test. The long one is random, and leaves a
// report and a timeline in a folder that it prints:
//
//	make chaos                              # the short form
//	make chaos DURATION=30m                 # random faults for 30 minutes
//	make chaos DURATION=30m SEED=1700000000 # the same faults again
//
// A seed repeats the choices of faults and clients, not the moments at which
// goroutines and processes meet.
package chaos
