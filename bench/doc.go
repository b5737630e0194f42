// SPDX-License-Identifier: Apache-2.0

// Command bench measures this project's cacher against the one that
// k8s.io/apiserver ships, and against floors: the least that any cache would
// have to do.
//
//	go run ./bench -rows 'label|LIST' -pairs 5 -out markdown
//
// The command prints one line for each figure: ours, the shipped cacher's, the
// floor, the ratio that the goal is set on, the goal, and whether it is met.
// Nothing is asserted on time.
//
// # How it measures
//
// Machines are shared and noisy. So the subjects (ours, shipped, floor) do the
// same work in one process, in turn, in an order that is reversed from pair to
// pair, and a figure is the median over the pairs of the ratios within each
// pair. Costs are the CPU time of the process, the garbage collector's
// included, not the time on the wall. They include the storage's and the
// clients' side of the work, for every subject alike, the floor included.
// Where events come at a fixed rate, waking up at that rate is measured by
// itself, beside the same open watches, and subtracted; what it is with that is
// printed as well. Each measurement checks that the work was done: events
// received, items listed, objects found.
//
// The storage under both (backend.go) is the leanest that can be: it hands
// over objects that are ready made and keeps no history. The shipped cacher
// runs with its feature gates at their defaults, its metrics registered, and
// consistent reads supported; ours with its metrics registered.
//
// # Over HTTPS
//
//	go run ./bench -boundary -rows 'LIST' -pairs 5
//
// measures servers, each a process, instead of caches in this process:
// package boundary has the servers, their etcd and their clients. docs/figures.md
// says how ("The boundary").
//
// # Where things are
//
// rows.go is the table: one row for each line of the goals. dispatch.go,
// burst.go, stop.go, reads.go, consistent.go, memory.go, heap.go and start.go are its
// rows by family; measure.go is how pairs are measured, goals.go what is
// printed of them; caches.go, backend.go, pods.go and clients.go are what
// they are measured with. TestEveryRow runs everything once, small.
//
// manycaches.go is what an etcd pays when a server of many resources starts, manyreads.go
// what consistent reads of them cost.
//
// boundaryrows.go is the table of the boundary, overhttps.go, overhttpswatch.go,
// restart.go and inuse.go are its rows by family, shares.go is what is printed of the
// profiles. TestBoundary runs some of them, small.
package main
