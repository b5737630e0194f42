// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/apihelpers"

	"github.com/kube-watchcache/watchcache/internal/keptlists"
)

// CustomResources returns the getter for ExtraConfig.CRDRESTOptionsGetter of a server of
// k8s.io/apiextensions-apiserver. Its caches are those of Install, with the same options. own is
// the server's own getter, e.g. from NewCRDRESTOptionsGetter. Call CustomResources after Install on
// the same config, and before config is copied or completed.
//
// LISTs of custom resources in compact JSON, and v1 PartialObjectMetadataLists in compact JSON and
// protobuf, are then written from kept bytes as with InstallAPIGroup, compressed if requested: for
// all served versions, namespaces, selectors and pages. Responses do not change by a byte. The
// server still encodes Tables, YAML, CBOR and indented JSON, responses audited at level
// RequestResponse, lists from storage, lists of fewer than four items, and each user's first list.
//
// The server's handler of custom resources receives a list without items; Install's handler around
// it adds them. The metric apiserver_response_sizes, written by the inner handler, therefore counts
// these responses without items. The handlers of a delegate's config are not called, so its lists
// are encoded by the server.
//
// Use the getter only for that server: no handler may filter or change the lists of its stores.
func CustomResources(config *genericapiserver.Config, own generic.RESTOptionsGetter) (generic.RESTOptionsGetter, error) {
	switch {
	case config == nil:
		return nil, errors.New("server.CustomResources: config is nil")
	case own == nil:
		return nil, errors.New("server.CustomResources: own is nil")
	}
	caches, ok := config.RESTOptionsGetter.(*getter)
	if !ok {
		return nil, fmt.Errorf("server.CustomResources: %w", errNotInstalled)
	}
	caches.installed.customLists.EnableCustomResources()
	custom := *caches
	custom.inner, custom.decorator = own, caches.custom
	return &custom, nil
}

// customResourceList describes the list of custom resources that a request may be for. ok is false
// if kept bytes can't serve the response: it is audited, or in another format.
func customResourceList(r *http.Request) (list keptlists.CustomList, ok bool) {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || r.Method != http.MethodGet || !info.IsResourceRequest || info.Verb != "list" || info.Subresource != "" || audited(r.Context()) {
		return list, false
	}
	// CRD handlers offer the media types of these codecs, in the same order.
	codecs := apihelpers.GetMetaInternalVersionCodecs()
	asked, media, err := negotiation.NegotiateOutputMediaType(r, codecs, customScope)
	if err != nil || !representationOnly(asked) || !same(media.Serializer, asked.Accepted.Serializer) { // indented
		return list, false
	}
	list.Resource = schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	list.Gzip = answersCompressed(r)
	isJSON := media.MediaType == runtime.ContentTypeJSON
	if asked.Convert == nil {
		return list, isJSON
	}
	list.Protobuf = media.MediaType == runtime.ContentTypeProtobuf
	list.Metadata = codecs.EncoderForVersion(media.Serializer, metav1.SchemeGroupVersion)
	return list, *asked.Convert == metav1.SchemeGroupVersion.WithKind("PartialObjectMetadataList") && (isJSON || list.Protobuf)
}

// customScope mirrors the rule by which CRD handlers accept media types: in protobuf they serve
// only metadata.
var customScope = &handlers.RequestScope{
	MetaGroupVersion: metav1.SchemeGroupVersion,
	TableConvertor:   rest.NewDefaultTableConvertor(schema.GroupResource{}),
	StandardSerializers: []runtime.SerializerInfo{
		{MediaTypeType: "application", MediaTypeSubType: "json"},
		{MediaTypeType: "application", MediaTypeSubType: "yaml"},
		{MediaTypeType: "application", MediaTypeSubType: "cbor"},
	},
}
