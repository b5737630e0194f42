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

// CustomResources returns a getter for ExtraConfig.CRDRESTOptionsGetter of a server of
// k8s.io/apiextensions-apiserver, with the caches and options of Install. own is the server's own
// getter, e.g. from NewCRDRESTOptionsGetter. Call CustomResources after Install on the same config,
// and before config is copied or completed.
//
// LISTs in compact JSON, and v1 PartialObjectMetadataLists in compact JSON and protobuf, are then
// served from kept bytes as with InstallAPIGroup. The server still encodes Tables, YAML, CBOR and
// indented JSON, responses audited at level RequestResponse, lists from storage, lists of fewer
// than four items, and each user's first list.
//
// The server's handler receives a list without items, which Install's handler around it adds.
// Therefore, the inner handler's metric apiserver_response_sizes doesn't count items. If config is
// a delegate's, its handlers are not called and the server encodes the lists.
//
// Use the getter only for that server. No handler may filter or change the lists of its stores.
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

// customResourceList describes the list that a request is for, and returns false if kept bytes
// can't serve it.
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
