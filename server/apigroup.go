// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"

	genericapiserver "k8s.io/apiserver/pkg/server"
)

// InstallAPIGroup replaces server.InstallAPIGroup(group). LISTs of the group are then written from
// kept encodings: an item is encoded again only after it changes. Responses do not change by a
// byte. This covers JSON and protobuf in all served versions, namespaces, selectors and pages, for
// lists, PartialObjectMetadataLists and Tables; Table cells are computed for every request.
//
// The server still encodes YAML, CBOR and indented JSON; Tables of meta.k8s.io/v1beta1 or with
// includeObject=Object or None; Tables and metadata audited at level RequestResponse; lists
// answered by storage; lists of fewer than four items or of unstructured objects; and lists whose
// items a registry's Decorator changed.
//
// If the client accepts gzip, lists over 128 KiB (except Tables) and watches with sendInitialEvents
// are written from kept compressed bytes. Their content is the same, but not the compressed bytes.
// All watches share one encoding of the initial events, unless a registry's Decorator or a filter
// reads the events. Install puts the handlers for this into Config.BuildHandlerChainFunc. A server
// that later replaces this function, or delegates to the server of the Config, encodes each list
// and compresses each watch by itself.
//
// A JSON list is encoded while it is sent, and a Table is converted in batches, so a response to a
// slow client holds one batch of objects and about 150 bytes per item. A TableConvertor must
// compute each row from its item alone. Responses encoded as a whole share a memory limit
// (docs/production.md); lists beyond it get 429.
//
// Kept bytes count against Config.EncodingBytes of each cache, so the gain depends on how many of
// the repeated lists fit. The first list of a kind is compared with the server's own encoding; the
// second is the first to keep bytes.
//
// The handlers also hide protobuf for types that don't support it. The server's own method offers
// it, then fails to write the response of a DELETE, which leaves every namespace Terminating.
//
// InstallAPIGroup replaces the group's NegotiatedSerializer. The server must be built from a Config
// passed to Install.
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

// PrepareAPIGroup is InstallAPIGroup without the installation: the caller installs the group
// afterwards, e.g. by InstallLegacyAPIGroup. Prepare a group only once.
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
