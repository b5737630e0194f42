// SPDX-License-Identifier: Apache-2.0

// Package standalone is what an API server needs to run with nothing around it: a
// run directory that one process owns, an etcd inside the process, TLS
// credentials that it makes itself, one client that it trusts, and a kubeconfig
// for that client.
//
// It is for trying things on one machine. It serves loopback addresses only, and
// every request must carry the client certificate of the kubeconfig.
package standalone
