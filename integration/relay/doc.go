// SPDX-License-Identifier: Apache-2.0

// Package relay runs cmd/relay as a process before a cluster of one API server, and judges
// by etcd's history what clients get of it: users with different rights, an upstream that
// goes away and comes back, relays that are killed, resources that disappear. The cluster
// is the example API server on either cache, with an etcd inside the test, and around it
// the part of a kube-apiserver that says who may do what.
package relay
