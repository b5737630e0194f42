// SPDX-License-Identifier: Apache-2.0

// Package chaos breaks three etcd members and two servers under load, and
// holds everything that clients saw to what etcd says that has happened.
//
// The parts and their owners:
//
//   - run has the cluster (integration/etcdserver), two API servers that are
//     processes (integration/internal/apiserver), a proxy of each server to each
//     member, and one before each API server. A run records etcd's history by a watch
//     of all keys, directly at the members; a missing revision is an error.
//   - clients is the load: writers through both servers and in transactions past
//     them, readers of every kind, watchers that begin in every way. A client
//     notes its requests and answers, and judges nothing.
//   - faults is the list of what goes wrong. A fault ends what it began; cause
//     lets one happen, and the next one begins when etcd answers again.
//   - settle ends a run: it writes every device once more, waits until each watch
//     has that, and asks the judges of integration/internal/judge. compareStates
//     lists both servers at one version; leaks compares the usage after the load with
//     that before it, and report prints the outcome.
//
// Members are containers where an engine answers, and processes elsewhere. ETCD_MODE
// (container or process) or ETCD_IMAGE demands one of them for the long form, and a
// line on the standard output says which it is and why. The short form has both: most
// of its faults hit processes, which start sooner, and TestContainers hits containers,
// or says why there are none. Containers are killed and paused by the engine, and cut
// off by its networks: packets get lost, where the proxies of processes break
// connections.
//
// A disk is slow when fsync and fdatasync of a member take up to 1.5 s
// (integration/internal/slowdisk, which says what that needs). Where it is not
// possible, a line says why, and the faults with slow disks are left out. No member
// writes to the disk in the time of an fsync, slow or not: nothing here is about the
// end of the machine.
//
// Package integration/internal/judge names the properties that are judged. A write that
// was not answered may have been applied at any later time. A client that is cut
// off between two events of one revision and resumes at it misses the second, as
// with etcd itself (docs/decisions/0006): a stream is judged by what was asked
// for, and not by what the client had before. Two things are not promised, and so
// not judged: a GET at resourceVersion "0" which finds nothing may be older than one
// before it, and a server need not answer while etcd does not.
//
// The short form is a part of make verify. The long one is random:
//
//	make e2e SUITE=chaos                                          # the short form
//	make e2e SUITE=chaos RUN=TestRandomFaults DURATION=30m        # random faults for 30 minutes
//	make e2e SUITE=chaos RUN=TestRandomFaults DURATION=30m SEED=7 # the same faults again
//
// A seed repeats the choices of faults and clients, not the moments at which
// goroutines and processes meet.
package chaos
