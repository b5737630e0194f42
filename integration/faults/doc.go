// SPDX-License-Identifier: Apache-2.0

// Package faults breaks a real etcd cluster of three members under an API server
// and judges the server from outside: what its clients saw, beside etcd's own
// history. The same schedule runs under the cache of this module and under the
// one that k8s.io/apiserver ships, and a table shows both.
//
// The short form is a part of make verify. The long one is random:
//
//	make e2e SUITE=faults                                          # the short form, its table printed
//	make e2e SUITE=faults RUN=TestRandomFaults DURATION=30m        # random faults for 30 minutes
//	make e2e SUITE=faults RUN=TestRandomFaults DURATION=30m SEED=7 # the same ones again
package faults
