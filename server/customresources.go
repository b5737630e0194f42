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

// CustomResources returns the getter for the custom resources of a server of
// k8s.io/apiextensions-apiserver, ExtraConfig.CRDRESTOptionsGetter, whose caches
// are those of Install, with its options. own is the server's own getter, from
// NewCRDRESTOptionsGetter for example. Call CustomResources after Install on the same
// config, and before config is copied or completed.
//
// Lists of custom resources in compact JSON, plain or compressed, are answered from
// kept bytes from then on, as with InstallAPIGroup: for all served versions,
// namespaces, selectors and pages; and lists as PartialObjectMetadataList of v1, in
// compact JSON and in protobuf. Responses stay the same to the byte. Everything else is encoded
// as before: Tables, YAML and CBOR, indented JSON, responses that an audit log has at
// level RequestResponse, lists from storage, lists of fewer than four items, and the
// first list of each user.
//
// The server's handler of custom resources is given a list without items, which
// Install's handler around it adds. So the metric apiserver_response_sizes, which that
// handler writes itself, counts these responses without items. If the config is that
// of a delegate, its handlers are not called, and the lists are encoded as before.
//
// The getter is for that server alone: no handler may filter or change the lists of
// its stores.
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

// customResourceList returns what list a request is for, if it may be one of custom
// resources that the server writes to the client only, in a format that is kept.
func customResourceList(r *http.Request) (list keptlists.CustomList, ok bool) {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || r.Method != http.MethodGet || !info.IsResourceRequest || info.Verb != "list" || info.Subresource != "" || audited(r.Context()) {
		return list, false
	}
	// The codecs have the media types of those of custom resources, in their order.
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

// customScope has the rule by which handlers of custom resources accept media types: no
// object of theirs has a representation in protobuf but its metadata.
var customScope = &handlers.RequestScope{
	MetaGroupVersion: metav1.SchemeGroupVersion,
	TableConvertor:   rest.NewDefaultTableConvertor(schema.GroupResource{}),
	StandardSerializers: []runtime.SerializerInfo{
		{MediaTypeType: "application", MediaTypeSubType: "json"},
		{MediaTypeType: "application", MediaTypeSubType: "yaml"},
		{MediaTypeType: "application", MediaTypeSubType: "cbor"},
	},
}
