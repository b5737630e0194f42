// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"

	genericapiserver "k8s.io/apiserver/pkg/server"
)

// InstallAPIGroup takes the place of server.InstallAPIGroup(group), and makes the
// server answer lists of the group from kept bytes: an item is encoded when it
// has changed, and not again for every request. Answers stay the same to the byte. The
// rule holds for lists in JSON and protobuf, in all served versions, for
// all namespaces, selectors and pages; for lists as PartialObjectMetadataList in
// the same formats; and for lists as Tables, whose cells are made for every request.
// Encoded as before are YAML and CBOR, indented JSON, Tables with includeObject=Object or
// None or of meta.k8s.io/v1beta1, Tables and metadata that an audit log has at level
// RequestResponse, lists that storage has answered, lists of fewer than four items or of
// unstructured objects, and lists whose items a registry's Decorator has changed.
//
// Clients that accept gzip get lists over 128 KiB, but for Tables, and watches with sendInitialEvents,
// compressed as ever, from bytes that are kept compressed: they read the same, while the
// compressed bytes are others. Initial events are encoded once for all watches, unless a
// registry's Decorator or a filter reads them. All this is done by the handlers that
// Install puts into Config.BuildHandlerChainFunc: a server that replaces this function
// afterwards, or delegates to the server of the Config, encodes each list again, and
// compresses each watch.
//
// A JSON list is encoded while it is sent, and a Table is converted some items at a time. A
// response that its client does not read holds one batch of objects and about 150 bytes for each
// item. A TableConvertor must make each row from its item alone. Responses that the server encodes
// as a whole share a memory limit (docs/production.md); lists beyond it get 429.
//
// The bytes count against Config.EncodingBytes of each cache: a server gains from it as
// far as the lists that its clients repeat fit. The first list of a kind is compared with
// the server's own, the second one keeps its bytes.
//
// The handlers also leave out protobuf for types without it, which the server's own method
// offers, and fails to write after a DELETE: every namespace would stay Terminating.
//
// The group's NegotiatedSerializer is replaced by one that does this. The server
// must be made of a Config that Install was called on.
func InstallAPIGroup(server *genericapiserver.GenericAPIServer, group *genericapiserver.APIGroupInfo) error {
	return InstallAPIGroups(server, group)
}

// InstallAPIGroups is InstallAPIGroup for several groups at once.
func InstallAPIGroups(server *genericapiserver.GenericAPIServer, groups ...*genericapiserver.APIGroupInfo) error {
	for _, group := range groups {
		if err := PrepareAPIGroup(server, group); err != nil {
			return err
		}
	}
	return server.InstallAPIGroups(groups...)
}

// PrepareAPIGroup does what InstallAPIGroup does for the lists and watches of a group, and
// leaves it to the caller to install the group afterwards: by InstallLegacyAPIGroup, for
// example. A group is prepared once.
func PrepareAPIGroup(server *genericapiserver.GenericAPIServer, group *genericapiserver.APIGroupInfo) error {
	switch {
	case server == nil:
		return errors.New("server.PrepareAPIGroup: server is nil")
	case group == nil:
		return errors.New("server.PrepareAPIGroup: group is nil")
	case group.NegotiatedSerializer == nil:
		return errors.New("server.PrepareAPIGroup: the group's NegotiatedSerializer is nil")
	}
	i := installationOf(server)
	if i == nil {
		return errors.New("server.PrepareAPIGroup: the watch cache is not installed on this server's Config: call Install before Config.Complete")
	}
	i.serve(group)
	return nil
}
