// SPDX-License-Identifier: Apache-2.0

// Package beside asks the same requests of two API servers over one etcd: one on this
// cache, one on the cacher that k8s.io/apiserver ships. Requests are drawn from a grammar
// by a seed; between them objects, definitions, keys of encryption and servers change. The
// answers must be equal, but for the rows of COMPATIBILITY.md that a request may show: each
// of these is a rule, by its name. A difference without a rule fails, with the seed and the
// changes before it.
//
//	make e2e SUITE=beside RUN=TestBeside SEED=7 DURATION=10m
//	go test -C integration/beside -run TestBeside -args -requests 100000
//
// The package is a module of its own, so that nobody's dependencies grow.
package beside
