// SPDX-License-Identifier: Apache-2.0

// Package form has what the measured server and the program that measures it
// agree on.
package form

// Form is what a server is made of.
type Form string

const (
	// Shipped is the server without a line of ours: the cacher of k8s.io/apiserver.
	Shipped Form = "shipped"
	// Plain is the server with server.Install.
	Plain Form = "plain"
	// Ours is the server with server.Install and server.InstallAPIGroup.
	Ours Form = "ours"
	// Floor is Ours under a handler that writes the bytes of its lists and watches
	// from memory, with no filter around it.
	Floor Form = "floor"
)

// EndpointsFile is the file in a server's run directory that has the endpoints,
// separated by commas, of the etcd inside the server.
const EndpointsFile = "etcd-endpoints"
