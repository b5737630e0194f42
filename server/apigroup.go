// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"

	genericapiserver "k8s.io/apiserver/pkg/server"
)

// InstallAPIGroup replaces server.InstallAPIGroup(group). It serves LISTs of the group from kept
// encodings, byte for byte as before, so that an item is encoded only once after each change. It
// supports JSON and protobuf, in all served versions, namespaces, selectors and pages, for lists,
// PartialObjectMetadataLists and Tables, whose cells are computed for every request.
//
// The server still encodes YAML, CBOR and indented JSON; Tables of meta.k8s.io/v1beta1 or with
// includeObject=Object or None; Tables and metadata audited at level RequestResponse; lists from
// storage; lists of fewer than four items or of unstructured objects; and items changed by a
// registry's Decorator.
//
// For clients that accept gzip, lists over 128 KiB (except Tables) and watches with
// sendInitialEvents use kept compressed bytes, which differ from the server's but decompress to the
// same. Watches share encoded initial events, unless a registry's Decorator or a filter reads them.
// The handlers for this are in Config.BuildHandlerChainFunc; a server that replaces it afterwards,
// or delegates to the server of the Config, encodes each list and compresses each watch.
//
// Lists are encoded and Tables converted in batches, so a response to a slow client holds one batch
// and about 150 bytes per item. A TableConvertor must compute each row from its item alone.
// Responses encoded as a whole share a memory limit (docs/production.md); lists beyond it get 429.
//
// Kept bytes count against Config.EncodingBytes of each cache. The first list of a kind is compared
// with the server's encoding; the second is the first to keep bytes.
//
// The handlers also hide protobuf for types without it. Otherwise the server negotiates it and
// fails to write the response of a DELETE, which leaves namespaces Terminating.
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

// PrepareAPIGroup prepares a group like InstallAPIGroup, but the caller installs it afterwards,
// e.g. by InstallLegacyAPIGroup. Prepare a group only once.
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
