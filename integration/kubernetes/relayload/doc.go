// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package relayload measures what thousands of informers of pods take of a kube-apiserver,
// on it and on a relay (cmd/relay) before it, on one machine in one run: pods that somebody
// changes at a fixed rate, and in turn no informers, informers on the relay, and informers
// on the kube-apiserver. In each turn the time until all have synced, a window of steady
// changes, and the kill of what serves them, until each of them has resumed.
//
// The informers are in a process of their own (Fleet). Most of them are a reflector's
// requests, with JSON, gzip, initial events and resumption as client-go has them, that
// read no more of a pod than its name, its version and the time of its change; some are
// client-go's own. In the end each of them must have the kube-apiserver's state.
package relayload
