// SPDX-License-Identifier: Apache-2.0

// Package faults breaks a real etcd cluster of three members under an API server
// and judges the server from outside: what its clients saw, beside etcd's own
// history. With -shipped the same schedule runs under the cacher that k8s.io/apiserver
// ships as well. Package integration/chaos has more faults, and more kinds of reads, at
// random.
//
//	make e2e SUITE=faults ARGS="-args -shipped"
package faults
